"""A snapshot always gets an answer, also when a step after its acks fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet.execution.failures import Failures
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Ack, Manifest, Saving
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus


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
