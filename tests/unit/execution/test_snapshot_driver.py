"""A snapshot always gets an answer, also when a step after its acks fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_jet.execution.failures import Failures
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Ack, Manifest, Saving
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef


def test_an_answer_that_cannot_be_read_fails_the_snapshot(tmp_path: Path) -> None:
    nothing: Any = None
    driver = SnapshotDriver(
        nothing, nothing, nothing, nothing, nothing, nothing, Failures("job"), now_ms=lambda: 7
    )
    path = tmp_path / "told.json"
    path.write_text("{", encoding="utf-8")
    ack = Ack("hourly", 0, "a0", saving=Saving(str(path), 1))
    manifest = Manifest("job", 2, 1, 1, 1, "v1", 4, {}, {}, {}, ())
    record = ExecutionRecord("job", 1, JobStatus.RUNNING)
    decided = driver.carry_out(protocol.Decide(manifest, (ack,), record, 3), CoordinatorView())
    assert isinstance(decided, protocol.Decided) and decided.record == record
    assert decided.outcome is protocol.WriteOutcome.UNAVAILABLE and decided.reason


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_the_note_says_whether_acknowledgements_are_confirmed(is_confirmed: bool) -> None:
    """For good: what a later note is about are held rows, not messages."""
    nothing: Any = None
    committer: Any = SimpleNamespace(commit=lambda *_, **__: None, took_ms={}, facts={})
    written: list[ExecutionRecord] = []

    def write(record: ExecutionRecord, purpose: protocol.Purpose) -> protocol.WriteOutcome:
        written.append(record)
        return protocol.WriteOutcome.WRITTEN

    driver = SnapshotDriver(
        write,
        nothing,
        nothing,
        committer,
        lambda stages, view: None,
        lambda messages: is_confirmed,
        Failures("job"),
        now_ms=lambda: 7,
    )
    manifest = Manifest("job", 2, 1, 1, 1, "v1", 4, {}, {}, {}, (), unacknowledged={"q": {"a": 1}})
    ref = SnapshotRef(2, 1, 1, manifest.name, 0, 0, 0)
    record = ExecutionRecord("job", 1, JobStatus.RUNNING, snapshots=(ref,))
    command = protocol.Complete(manifest, record, recovering=False)
    completed = driver.carry_out(command, CoordinatorView())
    assert isinstance(completed, protocol.Completed) and completed.is_confirmed is is_confirmed
    noted = written[0].snapshot
    assert noted is not None and noted.committed and noted.unconfirmed is not is_confirmed
    later = ExecutionRecord.from_bytes(written[0].with_note(8).to_bytes()).snapshot
    assert later is not None and later.unconfirmed is not is_confirmed
