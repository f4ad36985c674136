"""Tells whoever watches a job what goes on: job events, and what the lease says of its tracker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_jet.core.phases import Phase
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionStarted,
    JobEvent,
    ProgressReported,
    SnapshotCommitted,
    SnapshotFailed,
    SourceProgress,
    StageProgress,
)
from dagster_jet.execution.notifications import Emitted
from dagster_jet.execution.progress import Progress
from dagster_jet.observe.writing.profile_keeper import ProfileKeeper
from dagster_jet.observe.writing.report_keeper import ReportKeeper
from dagster_jet.observe.writing.stopwatch import EpochStopwatch, SnapshotStopwatch
from dagster_jet.ownership.activity_tracker import ActivityTracker
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.protocol import WriteOutcome
from dagster_jet.snapshot.record import Doing


@dataclass(frozen=True)
class _PendingReport:
    """Progress of the job at the barrier of a pending snapshot, and the result of its phase 1."""

    stages: dict[str, StageProgress]
    sources: dict[str, SourceProgress]
    phase1_ms: float = 0.0
    bytes_written: int = 0
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Announcer:
    """Turns the loop's events into events of the job. One per execution, on the loop's thread."""

    def __init__(
        self,
        job: str,
        tracker: ActivityTracker,
        progress: Progress,
        epochs: EpochStopwatch,
        snapshots: SnapshotStopwatch,
        profile: ProfileKeeper,
        reports: ReportKeeper,
        emit: Callable[[JobEvent], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._job, self._tracker, self._progress = job, tracker, progress
        self._epochs, self._snapshots, self._profile = epochs, snapshots, profile
        self._reports, self._emit, self._now_ms = reports, emit, now_ms
        self._view = CoordinatorView()
        self._started_ms = now_ms()
        self._is_announced = False
        self._failures = 0
        self._pending: _PendingReport | None = None

    # --- the loop's observer --------------------------------------------------------------------

    def polls(self, view: CoordinatorView) -> None:
        self._epochs.polls()
        if not view.is_pending:
            self._tracker.at(Doing.ASKING)

    def idles(self) -> None:
        self._tracker.advanced(Doing.IDLE)
        self._profile.keep_if_due()
        self._report_progress()

    def emit(self, event: Emitted) -> None:
        if isinstance(event.event, EpochCompleted):
            self._epochs.completed(event.event)
            self._reports.epoch_completed(event.event)
        self._emit(event.event)
        self._report_progress()  # a commit that is being retried says so

    def heard(
        self, event: protocol.Event, commands: Sequence[protocol.Command], view: CoordinatorView
    ) -> None:
        self._view = view
        self._epochs.heard(event, commands)
        self._snapshots.heard(event)
        if isinstance(event, protocol.EpochAcked):
            self._tracker.advanced(view.doing)
            self._profile.keep_if_due()
        elif not isinstance(event, protocol.Tick) or commands:
            self._tracker.at(view.doing)
        if isinstance(event, protocol.OrphansAborted) and view.record and view.record.snapshot:
            self._announce_start(view, restored=True)
        elif view.is_ready:
            self._announce_start(view, restored=False)
        self._note_failure(view)
        self._note_answer(event, view)
        if any(isinstance(command, protocol.Decide) for command in commands):
            self._pending = _PendingReport(
                self._progress.stages(view), self._progress.sources(view)
            )
        self._report_progress()

    def close(self, view: CoordinatorView) -> None:
        self._profile.close()
        self._reports.close(view)

    def _report_progress(self) -> None:
        report, record = self._reports.keep_if_due(self._view), self._view.record
        if report is not None and record is not None:
            stages, sources = dict(report.stages), dict(report.sources)
            self._emit(ProgressReported(self._job, record.execution_id, stages, sources))

    # --- what it makes of that ------------------------------------------------------------------

    def _announce_start(self, view: CoordinatorView, *, restored: bool) -> None:
        """Once per execution: everything older is committed or rolled back, data will flow."""
        if self._is_announced:
            return
        self._is_announced = True
        record = view.record
        assert record is not None
        snapshot = record.snapshot if restored else None
        self._reports.started()
        self._emit(
            ExecutionStarted(
                job=self._job,
                execution_id=record.execution_id,
                restarts=record.restarts,
                restored_snapshot_id=snapshot.snapshot_id if snapshot else None,
                restored_epoch_id=snapshot.epoch_id if snapshot else None,
                start_duration_ms=self._now_ms() - self._started_ms,
                stages=self._progress.stages(view),
                sources=self._progress.sources(view),
                first_execution_id=record.first_execution_id,
            )
        )

    def _note_answer(self, event: protocol.Event, view: CoordinatorView) -> None:
        if self._pending is None:
            return
        match event:
            case protocol.Decided(manifest, outcome=WriteOutcome.WRITTEN):
                phase1_ms = sum(time.ms for time in event.times)
                self._pending = replace(
                    self._pending,
                    stages=_shown(self._pending.stages, manifest),
                    phase1_ms=phase1_ms,
                    bytes_written=manifest.bytes_written,
                    tables=manifest.tables,
                )
                self._announce_if_complete(view, phase2_ms=0.0)
            case protocol.Completed():
                whole = (t.ms for t in event.times if (t.phase, t.stage) == (Phase.COMMIT, ""))
                self._announce_if_complete(view, phase2_ms=sum(whole), outputs=event.outputs)
        if not view.is_pending:
            self._pending = None

    def _announce_if_complete(
        self,
        view: CoordinatorView,
        *,
        phase2_ms: float,
        outputs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        record, report = view.record, self._pending
        assert record is not None and report is not None
        snapshot = record.snapshot
        if snapshot is None or view.is_pending:
            return
        self._tracker.snapshot_completed()
        self._reports.snapshot_completed(snapshot.snapshot_id)
        self._pending = None
        if snapshot.epoch_id == 0:
            return  # the starting positions of a new job
        self._emit(
            SnapshotCommitted(
                job=self._job,
                execution_id=record.execution_id,
                snapshot_id=snapshot.snapshot_id,
                epoch_id=snapshot.epoch_id,
                restarts=record.restarts,
                phase1_ms=report.phase1_ms,
                phase2_ms=phase2_ms,
                bytes_written=report.bytes_written,
                state_bytes=snapshot.state_bytes,
                failed_snapshots=view.failures,
                stages=report.stages,
                sources=report.sources,
                outputs=dict(outputs or {}),
                tables=dict(report.tables),
            )
        )

    def _note_failure(self, view: CoordinatorView) -> None:
        if view.failures == self._failures:
            return
        self._failures = view.failures
        reason = view.last_failure or ""
        self._tracker.snapshot_failed(reason)
        self._reports.snapshot_failed(reason, view.failures)
        execution_id = view.record.execution_id if view.record else 0
        self._emit(SnapshotFailed(self._job, execution_id, reason, view.failures))


def _shown(stages: Mapping[str, StageProgress], manifest: Manifest) -> dict[str, StageProgress]:
    """Returns the stages, without rows that sinks hold back."""
    shown = dict(stages)
    for sink in shown.keys() & set(manifest.held):
        held, known = manifest.held_rows(sink), stages[sink]
        shown[sink] = replace(known, rows_in=known.rows_in - held, rows_out=known.rows_out - held)
    return shown
