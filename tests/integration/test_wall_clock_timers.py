"""Timers in processing time: each is committed once, at its time, whatever dies meanwhile. What is
due follows from the clocks that the committed rows have got."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from dagster_jet import JobConfig
from dagster_jet.execution.clock import Clock
from dagster_jet.snapshot.record import JobStatus
from tests.long import long

from . import child, timer_child
from .oracle import by_manifest, committed, difference, input_rows
from .timer_child import AGAIN_MS, COLUMNS, JOB, alerts
from .world import World, wait_until, write_input

HOUR_MS = 3_600_000


class AlertsWorld(World):
    driver = staticmethod(timer_child.main)
    job, patience_s = JOB, 90

    def fill(self, files: int = 5, rows: int = 8, *, first: int = 0, **_: int) -> AlertsWorld:
        for number in range(first, first + files):
            rng = random.Random(f"alerts {number}")
            batch = [{"k": rng.choice("abcdef"), "v": rng.randrange(2_500)} for _ in range(rows)]
            write_input(self.folder / "in", number, batch)
        return self

    def rows(self, out: str = "out") -> Counter[Any]:
        return committed(self.folder / out, COLUMNS)

    def missing(self, until_ms: int | None = None, *, found: Counter[Any] | None = None) -> str:
        """Describes what is wrong in the committed rows, if all timers up to a time were called."""
        found = self.rows() if found is None else found
        read = Counter((k, v) for k, _, v, timer, *_ in found.elements() if timer is None)
        given = Counter((row["k"], row["v"]) for row in input_rows(self.folder / "in"))
        rang = Counter(row[:5] for row in found.elements() if row[3] is not None)
        return difference(read, given) or difference(rang, called(found, until_ms))


def called(found: Counter[Any], until_ms: int | None) -> Counter[Any]:
    """The calls of timers that follow from the rows and the clock of each."""
    of_key: dict[str, list[Any]] = defaultdict(list)
    for k, n, v, timer, _, at in found.elements():
        if timer is None:
            of_key[k].append((n, at, v))
    calls: Counter[Any] = Counter()
    for k, mine in of_key.items():
        n, due = 0, {}
        for row in [*sorted(mine), None]:
            limit = until_ms if row is None else row[1]
            while due and (limit is None or min(due.values()) < limit):
                time, name = min((time, name) for name, time in due.items())
                del due[name]
                n += 1
                calls[k, n, None, name, time] += 1
                if name == "0":
                    due["again"] = time + AGAIN_MS
            if row is not None:
                n += 1
                due[f"{row[2] % 3}"] = row[1] + row[2]
    return calls


@pytest.fixture
def world(world: World) -> AlertsWorld:
    return AlertsWorld(world.folder, world.fail_points, world.spark)


@long  # three executions, and none dies, below
def test_each_timer_is_committed_once_whoever_dies(world: AlertsWorld) -> None:
    """Killed in the middle of a commit; again while only timers make epochs; then 12 shards."""
    world.fill(6)
    world.run_child("files.commit.file:3=kill", sharded=True, until="stopped")
    world.run_child("record.snapshot.after:3=kill", config={"parallelism": 1}, until="stopped")
    world.fill(1, first=6)
    with world.jet() as jet:
        job = jet.submit(alerts(world.folder), JobConfig(**{**child.CONFIG, "parallelism": 12}))

        def rang() -> bool:
            return not world.missing(found=by_manifest(world.folder / "out", COLUMNS))

        wait_until(lambda: rang() or job.done.is_set(), "all have rung", 60)
        assert job.complete(60).status is JobStatus.COMPLETED
    assert not world.missing()
    rows = sorted(world.rows().elements())
    assert all(row[5] > row[4] for row in rows if row[3] is not None), "none came too early"
    clocks = [(k, at) for k, _, _, _, _, at in rows]
    assert clocks == sorted(clocks), "in the order of the calls no clock goes back"


def test_the_clock_of_a_job_goes_on_in_its_next_execution(
    world: AlertsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour late, an hour back, at another parallelism, and in another job."""
    now_ms, shift = Clock.now_ms, [0]
    monkeypatch.setattr(Clock, "now_ms", lambda self: now_ms(self) + shift[0])

    def run(until: str, parallelism: int, job: str = JOB, out: str = "out", **start: Any) -> int:
        """Returns the newest clock in the output."""
        with world.jet() as jet:
            config = JobConfig(**{**child.CONFIG, "parallelism": parallelism})
            jet.run(alerts(world.folder, job, out), config, until=until, **start)
        return max(row[5] for row in world.rows(out))

    write_input(world.folder / "in", 0, [{"k": k, "v": HOUR_MS} for k in "abc"])
    first = run("drained", 2)
    assert not world.missing(first), "only rows"
    shift[0] = -HOUR_MS
    write_input(world.folder / "in", 1, [{"k": "d", "v": HOUR_MS}])
    assert run("drained", 12) == first, "the clock stands still"
    with world.jet() as jet:
        jet.job(JOB).export_snapshot("kept")
    shift[0] = HOUR_MS + 60_000
    rang = run("drained", 3)
    assert rang > first + HOUR_MS, "without any input"
    assert not world.missing(rang)
    assert run("drained", 12, "another", "out2", initial_snapshot="kept") >= rang
    calls = Counter(row[:5] for row in world.rows("out2").elements())
    assert calls == called(world.rows(), rang) and calls.total() == 8
    write_input(world.folder / "in", 2, [{"k": "e", "v": HOUR_MS}])
    last = run("completed", 2)
    assert not world.missing(last), "the end of the input calls no timer that is not due"
