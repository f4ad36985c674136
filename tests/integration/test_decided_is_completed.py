"""An execution that ends for good beside a commit: what is decided is made visible, and nothing
else stays staged, although nobody may ever start the job again. And a later start goes on."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JobConfig, Pipeline
from dagster_jet.connectors.files import FilesSink
from dagster_jet.connectors.maps.map_sink import MapSink
from dagster_jet.contract import CommitContext
from dagster_jet.errors import BadRowError, SinkUnavailableError
from dagster_jet.execution.epoch_driver import EpochDriver
from dagster_jet.execution.epoch_planner import PollRequest
from dagster_jet.execution.events import EpochCompleted, JobEvent, SnapshotFailed
from dagster_jet.execution.loop import Loop
from dagster_jet.snapshot.protocol import CancelRequested, EpochFailed, StopKind
from dagster_jet.snapshot.record import JobStatus, StopCause
from tests.long import long

from . import child, map_child
from .oracle import input_rows, windowed
from .world import World

BLOCKED_EPOCH = 4
"""The one before that of file 4, which may hold a bad row."""


class Beside:
    """Refuses a commit until the loop has heard that it is to end.

    No epoch begins while a snapshot is pending, but the one beside the refused commit.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Any], sink: str) -> None:
        self.refused, self.heard, self.may_poll = (threading.Event() for _ in range(3))
        commit, feed, poll = kind.commit, Loop._feed, EpochDriver.poll

        def refuse(target: Any, artifacts: Any, context: CommitContext) -> None:
            epoch = max((one.epoch_id for one in artifacts), default=0)
            if context.sink == sink and epoch >= BLOCKED_EPOCH and not self.heard.is_set():
                self.refused.set()
                self.may_poll.set()
                raise SinkUnavailableError("the share does not answer.")
            commit(target, artifacts, context)

        def hear(loop: Loop, event: Any) -> Any:
            commands = feed(loop, event)
            if self.refused.is_set():
                if isinstance(event, EpochFailed | CancelRequested):
                    self.heard.set()
            elif loop.view.is_pending:
                self.may_poll.clear()
            else:
                self.may_poll.set()
            return commands

        def poll_alone(driver: EpochDriver, wanted: PollRequest) -> Any:
            assert self.may_poll.wait(60)
            return poll(driver, wanted)

        monkeypatch.setattr(kind, "commit", refuse)
        monkeypatch.setattr(Loop, "_feed", hear)
        monkeypatch.setattr(EpochDriver, "poll", poll_alone)


def files_left(world: World, jet: Jet) -> list[Any]:
    return list(world.staged())


def segments_left(world: World, jet: Jet) -> list[Any]:
    maps = (jet.store.map(f"jobs/totals/staged/{s}") for s in ("totals_out", "newest_out"))
    return [key for staged in maps for key in staged.keys("")]


SINKS = {
    "files": (FilesSink, "big_out", child.crash_pipeline, child.JOB, files_left),
    "maps": (MapSink, "newest_out", map_child.totals, "totals", segments_left),
}


def rewrite(path: Path, text: str) -> None:
    """Its place in the order of files stays."""
    before = path.stat()
    path.write_text(text, "utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def assert_right(world: World, jet: Jet, sinks: str) -> None:
    if sinks == "files":
        world.assert_exactly_once()
        return
    counted = windowed(input_rows(world.folder / "in" / "left"), map_child.WINDOW_MS)
    expected = {(k, end): {"n": n, "total": total} for k, _, end, n, total in counted}
    assert dict(jet.map("totals").items()) == expected


@pytest.mark.parametrize(
    ("how", "sinks"),
    [
        ("cancelled", "maps"),
        pytest.param("failed", "files", marks=long),
        pytest.param("cancelled", "files", marks=long),
        pytest.param("failed", "maps", marks=long),
    ],
)
def test_what_is_decided_is_completed(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str, sinks: str
) -> None:
    kind, blocked, pipeline, name, left = SINKS[sinks]
    make: Callable[[Path], Pipeline] = pipeline
    world.fill(files=8)
    bad = world.folder / "in" / "left" / "00004.json"
    was = bad.read_text("utf-8")
    if how == "failed":
        rewrite(bad, re.sub('"v": [0-9]+', '"v": "no number"', was, count=1))
    with world.jet() as jet:
        with monkeypatch.context() as patched:
            beside = Beside(patched, kind, blocked)
            is_refused = beside.refused.is_set

            def see(event: JobEvent) -> None:
                world.see(event)
                if how == "cancelled" and isinstance(event, EpochCompleted) and is_refused():
                    job.request_stop(StopKind.CANCEL)  # this epoch has staged its rows

            config = JobConfig(**child.CONFIG)
            job = jet.submit(make(world.folder), config, until="completed", on_event=see)
            with suppress(BadRowError) if how == "failed" else nullcontext():
                job.result(120)
        assert beside.heard.is_set() and world.events_of(SnapshotFailed)
        record = jet.job(name).record()
        assert record is not None and record.status is JobStatus.FAILED
        assert record.cause is (StopCause.CANCEL if how == "cancelled" else StopCause.ERROR)
        assert record.snapshot is not None and record.snapshot.committed
        assert record.snapshot.epoch_id >= BLOCKED_EPOCH
        assert left(world, jet) == []

        rewrite(bad, was)
        result = jet.run(make(world.folder), config, until="completed")
        assert result.status is JobStatus.COMPLETED
        assert_right(world, jet, sinks)
        assert left(world, jet) == []
