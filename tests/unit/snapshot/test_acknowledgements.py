"""Acknowledgements of a source are part of a snapshot, and have a phase 2."""

from __future__ import annotations

from dataclasses import replace

from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.protocol import Complete
from dagster_jet.snapshot.record import SnapshotRef
from tests.unit.snapshot.test_coordinator import acked, decided, run_epoch, running_job, tell

READ = {"queue": {"m1": "tag 1"}}


def test_a_snapshot_with_nothing_but_messages_to_acknowledge_has_a_phase_2() -> None:
    job = running_job()
    whole = acked(run_epoch(job, at=1000), 1000)
    acks = tuple(replace(ack, artifacts=()) for ack in whole.acks)
    deciding = tell(job, replace(whole, acks=acks, unacknowledged=READ))
    (complete,) = tell(job, decided(deciding, at=1000))
    assert isinstance(complete, Complete)
    manifest = complete.manifest
    assert manifest.unacknowledged == READ and not manifest.artifacts
    assert not manifest.is_committed
    assert Manifest.from_bytes(manifest.to_bytes()).unacknowledged == READ
    assert replace(manifest, unacknowledged={"queue": {}}).is_committed


def test_messages_of_a_failed_snapshot_are_in_the_next() -> None:
    job = running_job(snapshot_interval_ms=0)
    epoch = run_epoch(job, at=10)
    deciding = tell(job, replace(acked(epoch, 10, error="no room"), unacknowledged=READ))
    tell(job, decided(deciding, at=10))
    epoch = run_epoch(job, at=20)
    more = {"queue": {**READ["queue"], "m2": "tag 2"}}
    (write,) = tell(job, replace(acked(epoch, 20), unacknowledged=more))
    assert write.manifest.unacknowledged == more


def test_a_start_still_finds_the_messages_whose_acknowledgements_are_not_confirmed() -> None:
    """The record notes that phase 2 is over, and they may come again."""
    manifest = Manifest("job", 2, 1, 1, 1, "v1", 4, {}, {}, {}, (), unacknowledged=READ)
    ref = SnapshotRef(2, 1, 1, manifest.name, 0, 0, 0, committed=True, unconfirmed=True)
    assert manifest.as_of(ref).unacknowledged == READ
    assert manifest.owed(is_committed=True).unacknowledged == {}, "no start acknowledges them"
