"""An execution publishes its activity with every renewal of its lease."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.ownership.activity_tracker import ActivityTracker
from dagster_jet.snapshot.record import Activity, Doing


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_how_long_it_has_been_at_one_thing_and_why() -> None:
    clock = Clock()
    tracker = ActivityTracker(clock)
    clock.now += 5
    assert tracker.activity() == Activity(Doing.STARTING, 5_000)
    tracker.at(Doing.COMMITTING)
    clock.now += 400
    tracker.at(Doing.COMMITTING)
    assert tracker.retries("out (/o): disk full")
    assert not tracker.retries("out (/o): disk full"), "the log has it already"
    assert tracker.activity() == Activity(Doing.COMMITTING, 400_000, "out (/o): disk full")
    tracker.at(Doing.SAVING)
    assert tracker.activity() == Activity(Doing.SAVING, 0)


def test_epochs_do_not_hide_snapshots_that_keep_failing() -> None:
    clock = Clock()
    tracker = ActivityTracker(clock)
    for _ in range(3):
        tracker.advanced(Doing.SAVING)
        tracker.snapshot_failed("a member is full")
        tracker.at(Doing.EPOCH)
        clock.now += 100
    assert tracker.activity() == Activity(Doing.SAVING, 300_000, "a member is full")
    assert tracker.take_healthy_ms() == 0
    tracker.snapshot_completed()
    tracker.at(Doing.IDLE)
    assert tracker.activity() == Activity(Doing.IDLE, 0)


def test_only_what_gets_on_is_healthy() -> None:
    clock = Clock()
    tracker = ActivityTracker(clock)
    clock.now += 3
    tracker.at(Doing.EPOCH)
    assert tracker.take_healthy_ms() == 0, "busy with its first epoch, that may fail for ever"
    clock.now += 3
    tracker.advanced(Doing.IDLE)
    assert tracker.take_healthy_ms() == 3_000, "there is nothing to do"
    clock.now += 3
    assert tracker.take_healthy_ms() == 0, "the loop does not come round"


def test_a_source_that_is_asked_again_and_again_is_hidden_by_nothing() -> None:
    """Neither a loop that finds nothing to do, nor epochs of other sources hide it."""
    clock = Clock()
    tracker = ActivityTracker(clock)
    tracker.advanced(Doing.IDLE)
    for _ in range(4):
        tracker.source_away("in", "all replication slots are in use")
        clock.now += 100
        tracker.at(Doing.ASKING)
        tracker.advanced(Doing.IDLE)
    assert tracker.activity() == Activity(Doing.ASKING, 400_000, "all replication slots are in use")
    tracker.advanced(Doing.EPOCH)
    clock.now += 1
    tracker.source_away("other", "not now")
    assert tracker.activity().for_ms == 401_000 and tracker.activity().is_stuck(300_000)
    tracker.source_away("in", None)
    tracker.source_away("other", None)
    assert tracker.activity() == Activity(Doing.EPOCH, 1_000)


def test_what_lasts_longer_than_an_outage_is_said_before_it() -> None:
    clock = Clock()
    tracker = ActivityTracker(clock)
    tracker.at(Doing.COMMITTING)
    tracker.retries("out: the table is locked")
    clock.now += 300
    tracker.source_away("in", "the server is away")
    clock.now += 10
    assert tracker.activity() == Activity(Doing.COMMITTING, 310_000, "out: the table is locked")
