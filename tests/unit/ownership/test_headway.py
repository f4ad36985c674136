"""What an execution says of itself with every renewal of its lease."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.ownership.headway import Headway
from dagster_jet.snapshot.record import Activity, Doing


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_how_long_it_has_been_at_one_thing_and_why() -> None:
    clock = Clock()
    headway = Headway(clock)
    clock.now += 5
    assert headway.activity() == Activity(Doing.STARTING, 5_000)
    headway.at(Doing.COMMITTING)
    clock.now += 400
    headway.at(Doing.COMMITTING)
    headway.met("out (/o): disk full")
    assert headway.activity() == Activity(Doing.COMMITTING, 400_000, "out (/o): disk full")
    headway.at(Doing.SAVING)
    assert headway.activity() == Activity(Doing.SAVING, 0)


def test_epochs_do_not_hide_snapshots_that_keep_failing() -> None:
    clock = Clock()
    headway = Headway(clock)
    for _ in range(3):
        headway.advanced(Doing.SAVING)
        headway.snapshot_failed("a member is full")
        headway.at(Doing.EPOCH)
        clock.now += 100
    assert headway.activity() == Activity(Doing.SAVING, 300_000, "a member is full")
    assert headway.take_healthy_ms() == 0
    headway.snapshot_completed()
    headway.at(Doing.IDLE)
    assert headway.activity() == Activity(Doing.IDLE, 0)


def test_only_what_gets_on_is_healthy() -> None:
    clock = Clock()
    headway = Headway(clock)
    clock.now += 3
    headway.at(Doing.EPOCH)
    assert headway.take_healthy_ms() == 0, "busy with its first epoch, that may fail for ever"
    clock.now += 3
    headway.advanced(Doing.IDLE)
    assert headway.take_healthy_ms() == 3_000, "there is nothing to do"
    clock.now += 3
    assert headway.take_healthy_ms() == 0, "the loop does not come round"
