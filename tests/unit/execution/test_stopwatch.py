"""An execution's time is divided into phases: no time is left out, and none is counted twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dagster_jet.core.phases import Part, Phase, PhaseClock, PhaseTime
from dagster_jet.execution.events import EpochCompleted
from dagster_jet.observe.writing.recent_timings import RecentTimings, Timing
from dagster_jet.observe.writing.stopwatch import EpochStopwatch, SnapshotStopwatch
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.manifest import Artifact, Manifest
from dagster_jet.snapshot.protocol import WriteOutcome

RUN = protocol.RunEpoch(1, 1, None, terminal=False, final=False)
ACKED = protocol.EpochAcked(1, 1, (), {}, {}, 0)
FOUND, NOTHING = protocol.Tick(0, wants_epoch=True), protocol.Tick(0, wants_epoch=False)
NO_RECORD: Any = None


class Seconds:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_ms(self, ms: float) -> None:
        self.now += ms / 1000


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


def completed(**ms: float) -> EpochCompleted:
    times = tuple(PhaseTime(Phase(phase), took) for phase, took in ms.items())
    return EpochCompleted("shop", 1, 1, 50, sum(ms.values()), times)


def of_epoch(timing: Timing) -> dict[Phase, float]:
    """Phases of an epoch that took any time."""
    found = {p: round(ms, 6) for (p, _), ms in timing.ms.items() if p.part is Part.EPOCH}
    return {phase: ms for phase, ms in found.items() if ms}


def test_a_clock_cuts_work_into_phases(seconds: Seconds) -> None:
    clock = PhaseClock(seconds)
    for phase, ms in ((Phase.PLANNING, 2), (Phase.BUILDING, 30), (Phase.PLANNING, 1)):
        seconds.pass_ms(ms)
        clock.end(phase)
    assert [(t.phase, round(t.ms)) for t in clock.times()] == [
        (Phase.PLANNING, 3),
        (Phase.BUILDING, 30),
    ]


def test_a_lap_is_all_the_time_from_acks_to_acks(seconds: Seconds) -> None:
    timings = RecentTimings(first=Timing())
    watch = EpochStopwatch(timings, seconds)
    watch.polls()
    seconds.pass_ms(3)
    watch.heard(FOUND, [RUN])
    seconds.pass_ms(100)
    # Seven of the hundred are nobody's: on the way from thread to thread.
    watch.completed(completed(planning=1, building=32, action=58, checking=2))
    watch.heard(ACKED, [])
    (timing,) = timings.epochs
    assert of_epoch(timing) == {
        Phase.ASKING: 3,
        Phase.PLANNING: 1,
        Phase.BUILDING: 32,
        Phase.ACTION: 58,
        Phase.CHECKING: 9,
    }
    assert (timing.number, timing.rows) == (1, 50)


def test_what_is_inside_of_the_action_is_not_added_to_it(seconds: Seconds) -> None:
    timings = RecentTimings(first=Timing())
    watch = EpochStopwatch(timings, seconds)
    watch.heard(FOUND, [RUN])
    seconds.pass_ms(10)
    watch.completed(completed(action=10, spark=6, step=4))
    watch.heard(ACKED, [])
    assert sum(of_epoch(timings.epochs[0]).values()) == 10


def test_looks_that_find_nothing_are_idling(seconds: Seconds) -> None:
    timings = RecentTimings(first=Timing())
    watch = EpochStopwatch(timings, seconds)
    for _ in range(3):
        watch.polls()
        seconds.pass_ms(1)
        watch.heard(NOTHING, [])
        seconds.pass_ms(20)
    watch.polls()
    seconds.pass_ms(1)
    watch.heard(FOUND, [RUN])
    watch.heard(ACKED, [])
    assert of_epoch(timings.epochs[0]) == {Phase.IDLE: 63, Phase.ASKING: 1}


def test_input_that_may_not_be_read_yet_waits_for_the_snapshot(seconds: Seconds) -> None:
    timings = RecentTimings(first=Timing())
    watch = EpochStopwatch(timings, seconds)
    watch.polls()
    watch.heard(FOUND, [])
    seconds.pass_ms(40)
    watch.polls()
    watch.heard(FOUND, [RUN])
    watch.heard(ACKED, [protocol.Publish(1, ())])
    seconds.pass_ms(5)
    watch.heard(protocol.Published(1), [RUN])
    watch.heard(ACKED, [])
    first, second = map(of_epoch, timings.epochs)
    assert first[Phase.WAITING] == 40
    assert second[Phase.PUBLISHING] == 5


def manifest(epoch_id: int = 4) -> Manifest:
    return Manifest("shop", 7, epoch_id, 1, 1, "", 4, {}, {}, {}, ())


def times(**ms: float) -> tuple[PhaseTime, ...]:
    return tuple(PhaseTime(Phase(phase), took) for phase, took in ms.items())


def decided(
    written: Manifest, outcome: WriteOutcome = WriteOutcome.WRITTEN, **ms: float
) -> protocol.Decided:
    return protocol.Decided(written, (), NO_RECORD, outcome, 0, times=times(**ms))


def test_a_snapshot_is_measured_step_by_step() -> None:
    timings = RecentTimings()
    watch = SnapshotStopwatch(timings)
    output = replace(manifest(), artifacts=(Artifact("out", 4, "t", "f", 1, 1, 1),))
    watch.heard(decided(output, state=5, manifest=11, record=13))
    assert not timings.snapshots
    watch.heard(ACKED)  # what else is answered meanwhile
    of_sink = PhaseTime(Phase.COMMIT, 6, "out")
    took = (*times(commit=7, note=3), of_sink)
    watch.heard(protocol.Completed(1, 7, WriteOutcome.WRITTEN, 0, took))
    (timing,) = timings.snapshots
    assert timing.ms == {
        (Phase.STATE, ""): 5,
        (Phase.MANIFEST, ""): 11,
        (Phase.RECORD, ""): 13,
        (Phase.COMMIT, ""): 7,
        (Phase.COMMIT, "out"): 6,
        (Phase.NOTE, ""): 3,
    }


def test_a_snapshot_without_output_is_complete_with_its_decision() -> None:
    timings = RecentTimings()
    SnapshotStopwatch(timings).heard(decided(manifest()))
    assert [timing.number for timing in timings.snapshots] == [7]


def test_a_discarded_snapshot_is_none() -> None:
    timings = RecentTimings()
    watch = SnapshotStopwatch(timings)
    watch.heard(decided(manifest(), WriteOutcome.UNAVAILABLE, manifest=4))
    watch.heard(protocol.Completed(1, 7, WriteOutcome.WRITTEN, 0))
    assert not timings.snapshots


def test_the_starting_positions_of_a_new_job_are_no_snapshot_of_an_epoch() -> None:
    timings = RecentTimings()
    SnapshotStopwatch(timings).heard(decided(manifest(epoch_id=0)))
    assert not timings.snapshots
