"""A queue that forgets what is acknowledged: nothing lost or doubled, wherever the job dies."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from dagster_jet import JobConfig, JobResult
from dagster_jet.execution import source_polling
from dagster_jet.execution.events import (
    ExecutionRestarting,
    GuaranteeLowered,
    JobEvent,
    SourceAvailable,
    SourceUnavailable,
)
from dagster_jet.snapshot.record import JobStatus
from tests.long import long
from tests.servers import wait_until

from . import child, queue_child
from .oracle import committed
from .world import World

MESSAGES = range(12)


class QueueWorld(World):
    driver = staticmethod(queue_child.main)

    def run(self, until: str = "drained", **config: Any) -> JobResult:
        with self.jet() as jet:
            return jet.run(
                queue_child.queue_pipeline(self.folder),
                JobConfig(**{**child.CONFIG, "max_items_per_epoch": 3, **config}),
                until=until,
                on_event=self.see,
            )

    def rows(self) -> Counter[tuple[Any, ...]]:
        return committed(self.folder / "out", ("v",))


@pytest.fixture
def world(world: World) -> QueueWorld:
    queue_child.send(world.folder, MESSAGES)
    return QueueWorld(world.folder, world.fail_points, world.spark)


ONCE = Counter((value,) for value in MESSAGES)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param("epoch.acked:3=kill", marks=long),  # read, and in no snapshot
        "record.snapshot.after:3=kill",  # decided, neither committed nor acknowledged
        pytest.param("commit.after:2=kill", marks=long),  # committed, and not acknowledged
        pytest.param("record.committed.before:2=kill", marks=long),  # acknowledged; nobody knows
        pytest.param("record.committed.after:2=kill", marks=long),
    ],
)
def test_a_message_counts_once_wherever_the_driver_dies(world: QueueWorld, rules: str) -> None:
    world.run_child(rules, config={**child.CONFIG, "max_items_per_epoch": 3})
    assert not world.rows() - ONCE
    assert len(queue_child.left(world.folder)) + world.rows().total() >= len(MESSAGES)
    assert world.run().status is JobStatus.DRAINED
    assert world.rows() == ONCE and queue_child.left(world.folder) == []
    queue_child.send(world.folder, [99])
    world.run()
    assert world.rows() == ONCE + Counter([(99,)]) and queue_child.left(world.folder) == []


def test_without_a_guarantee_each_epoch_acknowledges(world: QueueWorld) -> None:
    world.run(guarantee="none")
    assert world.rows() == ONCE and queue_child.left(world.folder) == []


def test_a_sink_may_give_less_and_says_so(world: QueueWorld) -> None:
    with world.jet() as jet:
        p = queue_child.queue_pipeline(world.folder, guarantee="at-least-once")
        result = jet.run(p, JobConfig(**child.CONFIG), until="drained", on_event=world.see)
    [told] = world.events_of(GuaranteeLowered)
    assert (told.stage, told.effective.value) == ("out", "at-least-once")
    assert result.rows_in == len(MESSAGES) and world.rows() == ONCE


def test_an_outage_of_the_queue_is_waited_for_without_a_restart(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the outage lasts, the lease names it: asset checks read the lease."""
    monkeypatch.setattr(source_polling, "REPORT_AFTER_S", 0.0)
    path = world.folder / "queue.db"

    def is_said() -> bool:
        record = jet.job(queue_child.JOB).record()
        said = str(record.lease.activity) if record and record.lease else ""
        return re.match(r"(starting|asking the sources) for \d+ s: .*locked", said) is not None

    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("begin exclusive")

        def see(event: JobEvent) -> None:
            world.see(event)
            if isinstance(event, SourceUnavailable):
                wait_until(is_said, within=30)
                other.execute("rollback")

        with world.jet() as jet:
            p = queue_child.queue_pipeline(world.folder)
            jet.run(p, JobConfig(**child.CONFIG), until="drained", on_event=see)
    [away], [back] = world.events_of(SourceUnavailable), world.events_of(SourceAvailable)
    assert away.source == back.source == "queue" and "locked" in away.reason
    assert away.since_ms == back.unavailable_since_ms
    assert world.events_of(ExecutionRestarting) == [] and world.rows() == ONCE
