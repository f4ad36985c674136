"""Snapshots hold output of a sink back until it is large or old enough; other sinks do not wait."""

from __future__ import annotations

from dataclasses import replace

from dagster_jet.core.hold_back import HoldBack
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.manifest import Artifact, Manifest
from dagster_jet.snapshot.newest_output import newest_of, output_after, output_to_be_there
from dagster_jet.snapshot.protocol import (
    AbortOrphans,
    CancelRequested,
    Claimed,
    Complete,
    Decide,
    EpochAcked,
    ManifestLoaded,
    Purpose,
    Restored,
    RunEpoch,
    Stop,
    StopKind,
    Tick,
    WriteOutcome,
)
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef

from .test_coordinator import (
    CONFIG,
    aborted,
    acked,
    answer,
    completed,
    crashed,
    decided,
    run_epoch,
    running_job,
    tell,
)

BYTES = 8
"""Size of a staged file."""


def holding_job(files: int, max_delay_ms: int = 60_000) -> Coordinator:
    """Two sinks get the same rows; `out` waits for so many files."""
    rule = HoldBack(files * BYTES, max_delay_ms)
    return running_job(holds={"out": rule}, snapshot_interval_ms=0)


def both(epoch: RunEpoch, at: int) -> EpochAcked:
    """The second sink, `plain`, holds nothing back."""
    done = acked(epoch, at)
    state, writer = done.acks
    (held,) = writer.artifacts
    plain = replace(held, sink="plain", token=f"{held.token}-plain")
    return replace(done, acks=(state, replace(writer, artifacts=(held, plain))))


def manifest_of(job: Coordinator, at: int, stop: StopKind | None = None) -> Manifest:
    """The manifest of a decided snapshot with one epoch of rows."""
    commands = tell(job, both(run_epoch(job, at, stop), at))
    (decide,) = commands
    assert isinstance(decide, Decide)
    (complete, *_) = tell(job, decided(commands, at=at))
    assert isinstance(complete, Complete)
    manifest = complete.manifest
    tell(job, completed(manifest.snapshot_id, at))
    return manifest


def epochs_of(artifacts: tuple[Artifact, ...], sink: str) -> list[int]:
    return [one.epoch_id for one in artifacts if one.sink == sink]


def test_the_output_to_be_there_is_the_last_that_is_committed() -> None:
    """A place that comes back older lacks the end: maybe the last artifact of an epoch alone."""
    staged = [
        Artifact("out", epoch, f"{epoch}-{n}", "t", 1, 1, 0) for epoch in (1, 2) for n in "ab"
    ]
    assert newest_of(staged, timeline=1)["out"].artifact == staged[-1]


def test_rows_wait_for_more_of_them_and_those_of_the_other_sink_do_not() -> None:
    job = holding_job(3)
    found = [manifest_of(job, at) for at in (10, 20, 30, 40)]
    assert [epochs_of(one.due, "plain") for one in found] == [[1], [2], [3], [4]]
    assert [epochs_of(one.due, "out") for one in found] == [[], [], [1, 2, 3], []]
    assert [epochs_of(one.artifacts, "out") for one in found] == [[1], [1, 2], [1, 2, 3], [4]]
    assert [one.held for one in found] == [("out",), ("out",), (), ("out",)]
    newest = [{s: n.artifact.epoch_id for s, n in one.newest_output.items()} for one in found]
    assert newest == [{}, {"plain": 1}, {"plain": 2}, {"plain": 3, "out": 3}]
    refs = job.record.snapshots
    assert [(ref.committed, ref.is_all_committed) for ref in refs] == [(True, False), (True, True)]


def test_sinks_that_hold_rows_back_commit_together() -> None:
    """When the first of them is due, so that their tables are one cut."""
    rules = {"out": HoldBack(3 * BYTES, 60_000), "plain": HoldBack(100 * BYTES, 60_000)}
    job = running_job(holds=rules, snapshot_interval_ms=0)
    held = []
    for at in (10, 20, 30):
        deciding = tell(job, both(run_epoch(job, at), at))
        tell(job, decided(deciding, at=at))
        (decide,) = deciding
        assert isinstance(decide, Decide)
        held.append(decide.manifest.held)
    assert held == [("out", "plain"), ("out", "plain"), ()]


def test_rows_wait_no_longer_than_they_may() -> None:
    job = holding_job(100, max_delay_ms=25)
    found = [manifest_of(job, at) for at in (10, 20, 34, 35, 36)]
    assert [epochs_of(one.due, "out") for one in found] == [[], [], [], [1, 2, 3, 4], []]


def test_an_idle_job_takes_a_snapshot_for_rows_that_have_waited() -> None:
    job = holding_job(100, max_delay_ms=5_000)
    manifest_of(job, 10)
    assert job.view().snapshot_due_at_ms == 5_010
    idle = Tick(5_009, wants_epoch=False)
    assert tell(job, idle) == []
    (epoch,) = tell(job, replace(idle, now_ms=5_010))
    assert isinstance(epoch, RunEpoch) and epoch.snapshot_id is not None and not epoch.terminal
    done = acked(epoch, 5_020)
    (decide,) = tell(job, replace(done, acks=tuple(replace(a, artifacts=()) for a in done.acks)))
    assert isinstance(decide, Decide)
    assert epochs_of(decide.manifest.due, "out") == [1]
    assert job.view().snapshot_due_at_ms is None


def test_without_an_interval_rows_that_wait_do_not_hurry_the_next_snapshot() -> None:
    rule = HoldBack(1_000, 60_000)
    job = running_job(holds={"out": rule}, snapshot_interval_ms=None, snapshot_period_ms=250)
    (epoch,) = tell(job, Tick(1_000, wants_epoch=True, writes_nothing=True))
    assert isinstance(epoch, RunEpoch)
    (decide,) = tell(job, acked(epoch, 1_010))
    assert isinstance(decide, Decide) and decide.manifest.held == ("out",)
    assert decide.manifest.is_committed, "there is no phase 2"
    assert tell(job, decided([decide], at=1_020)) == []
    (epoch,) = tell(job, Tick(1_500, wants_epoch=True, writes_nothing=True))
    assert isinstance(epoch, RunEpoch) and epoch.snapshot_id is None


def test_a_stop_commits_what_waits_also_if_nothing_came_since() -> None:
    job = holding_job(100)
    manifest_of(job, 10)
    (epoch,) = tell(job, Tick(20, wants_epoch=False, stop=StopKind.SUSPEND))
    assert isinstance(epoch, RunEpoch) and epoch.terminal
    done = acked(epoch, 30)
    deciding = tell(job, replace(done, acks=tuple(replace(a, artifacts=()) for a in done.acks)))
    (complete, *_) = tell(job, decided(deciding, at=30))
    assert isinstance(complete, Complete)
    assert epochs_of(complete.manifest.due, "out") == [1] and complete.manifest.held == ()
    (stop,) = tell(job, completed(complete.manifest.snapshot_id, 40))
    assert isinstance(stop, Stop) and stop.status is JobStatus.SUSPENDED
    assert job.record.snapshot is not None and job.record.snapshot.is_all_committed


def test_the_last_snapshot_of_an_input_holds_nothing_back() -> None:
    job = holding_job(100)
    manifest_of(job, 10)
    assert epochs_of(manifest_of(job, 20, StopKind.COMPLETE).due, "out") == [1, 2]


def test_a_snapshot_that_somebody_asks_for_holds_nothing_back() -> None:
    """An export is made of it."""
    job = holding_job(100)
    manifest_of(job, 10)
    (epoch,) = tell(job, Tick(20, wants_epoch=False, wants_snapshot=True))
    assert isinstance(epoch, RunEpoch)
    (decide,) = tell(job, acked(epoch, 30))
    assert isinstance(decide, Decide) and epochs_of(decide.manifest.due, "out") == [1, 2]


def test_rows_of_a_discarded_snapshot_do_not_wait_again() -> None:
    job = holding_job(2)
    manifest_of(job, 10)
    deciding = tell(job, both(run_epoch(job, 20), 20))
    tell(job, decided(deciding, WriteOutcome.UNAVAILABLE, at=20))
    found = manifest_of(job, 1_030)
    assert epochs_of(found.due, "out") == [1, 2, 3] and epochs_of(found.due, "plain") == [2, 3]
    assert [one.token for one in found.artifacts].count("staged/1-1") == 1


def held_back(*, committed: bool) -> tuple[ExecutionRecord, Manifest]:
    """Execution 1 decided a snapshot that holds `out` back, and died."""
    record, manifest = crashed(committed=committed)
    (own,) = manifest.artifacts
    plain = replace(own, sink="plain", token="plain")
    place = {"kind": "files", "path": "/out"}
    sinks = {"out": place, "plain": place}
    manifest = replace(manifest, artifacts=(own, plain), held=("out",), sinks=sinks)
    (ref,) = record.snapshots
    return replace(record, snapshots=(replace(ref, holds=True),)), manifest


def recommitted(record: ExecutionRecord, manifest: Manifest) -> tuple[Coordinator, Complete]:
    job = Coordinator(CONFIG)
    told = Claimed(record, sinks=manifest.sinks), answer(Purpose.STARTING)
    (complete,) = tell(job, *told, ManifestLoaded(manifest), Restored({}))
    assert isinstance(complete, Complete) and complete.recovering
    return job, complete


def test_a_start_commits_what_was_held_back_and_nothing_twice() -> None:
    record, manifest = held_back(committed=True)
    job, complete = recommitted(record, manifest)
    assert [one.sink for one in complete.manifest.due] == ["out"]
    (abort,) = tell(job, completed(manifest.snapshot_id, 10, by=2))
    assert isinstance(abort, AbortOrphans)
    (ref,) = job.record.snapshots
    assert ref.is_all_committed and manifest.as_of(ref).held == ()
    assert {s: one.artifact.epoch_id for s, one in job.job.newest_output.items()} == {
        "out": 9,
        "plain": 9,
    }
    tell(job, aborted(10))
    assert run_epoch(job, 2_000).epoch_id == 10

    again = Coordinator(CONFIG)
    told = Claimed(replace(job.record, execution_id=3)), answer(Purpose.STARTING)
    (abort,) = tell(again, *told, ManifestLoaded(manifest), Restored({}))
    assert isinstance(abort, AbortOrphans), "it is noted"


def test_a_start_commits_all_if_phase_2_is_not_noted() -> None:
    record, manifest = held_back(committed=False)
    _, complete = recommitted(record, manifest)
    assert [one.sink for one in complete.manifest.due] == ["out", "plain"]


def test_a_cancelled_start_commits_what_was_held_back_first() -> None:
    record, manifest = held_back(committed=True)
    job, complete = recommitted(record, manifest)
    assert tell(job, CancelRequested()) == []
    (stop,) = tell(job, completed(complete.manifest.snapshot_id, 10, by=2))
    assert isinstance(stop, Stop) and stop.status is JobStatus.FAILED


def test_a_place_must_have_what_is_visible_and_not_what_is_held_back() -> None:
    record, manifest = held_back(committed=True)
    assert output_to_be_there(manifest, is_committed=True).keys() == {"plain"}
    of = {"lost": (), "sinks": manifest.sinks, "renamed": {}}
    after = output_after(manifest, is_committed=True, **of)
    assert after.keys() == {"out", "plain"}
    (ref,) = record.snapshots
    later = manifest.as_of(replace(ref, holds=False))
    assert output_to_be_there(later, is_committed=True).keys() == {"out", "plain"}


def test_both_forms_keep_it() -> None:
    record, manifest = held_back(committed=True)
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert ExecutionRecord.from_bytes(record.to_bytes()) == record
    ref = manifest.ref(1, 2)
    assert (ref.holds, ref.committed) == (True, False)
    assert SnapshotRef(1, 1, 1, "m", 0, 0, 0, committed=True).is_all_committed


def test_readers_are_told_of_what_is_visible_only() -> None:
    """Rows, and the time up to which windows are closed: an hour is sealed by it."""
    job = holding_job(3)
    found = []
    for at in (10, 20, 30):
        epoch = run_epoch(job, at)
        marks = {"reached_ms": {"hourly": at}}
        deciding = tell(job, replace(both(epoch, at), watermarks=marks))
        tell(job, decided(deciding, at=at))
        (decide,) = deciding
        assert isinstance(decide, Decide)
        tell(job, completed(decide.manifest.snapshot_id, at))
        found.append(decide.manifest)
    assert [one.shown("out").rows_in for one in found] == [0, 0, 3]
    assert [one.counters["out"].rows_in for one in found] == [1, 2, 3]
    marks_of = [one.shown_watermarks.get("reached_ms") for one in found]
    assert marks_of == [None, None, {"hourly": 30}]
    first = found[0]
    ref = replace(first.ref(1, 2), committed=True, holds=False)
    assert first.as_of(ref).shown("out").rows_in == 1
    assert first.as_of(ref).shown_watermarks == first.watermarks
