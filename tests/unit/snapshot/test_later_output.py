"""Output that a sink's place may have, and the snapshot to go back to has not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_jet.snapshot.manifest import Artifact, Manifest, NewestOutput
from dagster_jet.snapshot.newest_output import output_later_than, output_up_to
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus


def artifact(epoch_id: int) -> Artifact:
    return Artifact("out", epoch_id, f"token-{epoch_id}", "", rows=1, bytes=8, checksum=7)


def manifest(epoch_id: int, *, timeline: int, execution_id: int, job: str = "j") -> Manifest:
    staged = (artifact(epoch_id),)
    return Manifest(job, 3, epoch_id, execution_id, timeline, "", 7, {}, {}, {}, staged)


def later(newest: Manifest, since: Manifest, record: ExecutionRecord) -> list[int]:
    found = output_later_than(newest, output_up_to(since, record))
    return [one.artifact.epoch_id for one in found.get("out", ())]


RECORD = ExecutionRecord("j", 9, JobStatus.RUNNING, timeline=2, first_execution_id=3)
NEWEST = manifest(150, timeline=2, execution_id=8)


@pytest.mark.parametrize(
    "snapshot",
    [
        manifest(1000, timeline=1, execution_id=4),
        manifest(1000, timeline=2, execution_id=2),
        manifest(1000, timeline=2, execution_id=5, job="another"),
    ],
    ids=["earlier timeline", "before the job was deleted", "another job"],
)
def test_a_larger_epoch_says_nothing_elsewhere(snapshot: Manifest) -> None:
    assert later(NEWEST, snapshot, RECORD) == [150]


def test_a_larger_epoch_of_the_same_timeline_has_the_output() -> None:
    assert later(NEWEST, manifest(150, timeline=2, execution_id=8), RECORD) == []
    assert later(NEWEST, manifest(149, timeline=2, execution_id=8), RECORD) == [150]


def test_output_before_the_timelines_parted_is_not_later() -> None:
    """The job went back from epoch 1000 to epoch 100 and has written nothing since."""
    before = {"out": NewestOutput(artifact(100), 1)}
    newest = replace(NEWEST, epoch_id=100, artifacts=(), newest_output=before)
    assert later(newest, manifest(1000, timeline=1, execution_id=4), RECORD) == []
    assert later(newest, manifest(1000, timeline=1, execution_id=2), RECORD) == [100]
