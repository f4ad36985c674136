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


def test_a_source_that_is_asked_again_and_again_is_hidden_by_nothing() -> None:
    """Neither by a loop that comes round and finds nothing to do, nor by the epochs of others."""
    clock = Clock()
    headway = Headway(clock)
    headway.advanced(Doing.IDLE)
    for _ in range(4):
        headway.source_away("in", "all replication slots are in use")
        clock.now += 100
        headway.at(Doing.ASKING)
        headway.advanced(Doing.IDLE)
    assert headway.activity() == Activity(Doing.ASKING, 400_000, "all replication slots are in use")
    headway.advanced(Doing.EPOCH)
    clock.now += 1
    headway.source_away("other", "not now")
    assert headway.activity().for_ms == 401_000 and headway.activity().is_stuck(300_000)
    headway.source_away("in", None)
    headway.source_away("other", None)
    assert headway.activity() == Activity(Doing.EPOCH, 1_000)


def test_what_lasts_longer_than_an_outage_is_said_before_it() -> None:
    clock = Clock()
    headway = Headway(clock)
    headway.at(Doing.COMMITTING)
    headway.met("out: the table is locked")
    clock.now += 300
    headway.source_away("in", "the server is away")
    clock.now += 10
    assert headway.activity() == Activity(Doing.COMMITTING, 310_000, "out: the table is locked")
