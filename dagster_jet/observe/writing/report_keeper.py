"""Keeps a report of an execution's progress in the store, so that other processes can read it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dagster_jet.execution.events import EpochCompleted
from dagster_jet.execution.notifications import Died, Notification
from dagster_jet.execution.progress import Progress
from dagster_jet.execution.sink_committer import PendingCommit
from dagster_jet.execution.worker import Worker
from dagster_jet.observe.writing.kept_value import KeptValue, read_kept
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.store import Store

_logger = logging.getLogger(__name__)

KEEP_EVERY_S = 5.0
_GRACE_S = 2.0
"""Longest time for which the end of an execution waits for the last report."""
_REPORT = "progress"


@dataclass
class ReportKeeper:
    """Keeps the report of one execution. The loop's thread calls it; another thread writes.

    An unchanged report is not written again: an idle job writes nothing. Best effort, as a
    profile is.
    """

    store: Store
    job: str
    execution_id: int
    progress: Progress
    committing: Callable[[], Mapping[str, PendingCommit]]
    """Phase 2 by sink, as it is now."""
    seconds: Callable[[], float]
    now_ms: Callable[[], int]
    _report: ProgressReport | None = None
    """The report, as far as events tell; None: no data flows yet."""
    _rows: int = 0
    """Rows read in epochs since the last report was made."""
    _kept: ProgressReport | None = None
    """Without the time at which it was written."""
    _kept_at: float = float("-inf")
    _made_at: float = 0.0
    _read_before: dict[str, int] = field(default_factory=dict)
    _value: KeptValue = field(init=False)
    _worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self._value = KeptValue(self.store, self.job, _REPORT, self.execution_id)
        self._worker = Worker(f"jet-report-{self.job}", self._note)

    def started(self) -> None:
        """Data is about to flow."""
        self._report, self._made_at = ProgressReport(self.now_ms()), self.seconds()

    def epoch_completed(self, event: EpochCompleted) -> None:
        if self._report is not None:
            self._rows += event.rows
            epochs, took_ms = self._report.epochs + 1, round(event.duration_ms, 1)
            self._report = replace(self._report, epochs=epochs, last_epoch_ms=took_ms)

    def snapshot_completed(self, snapshot_id: int) -> None:
        if self._report is not None:
            self._report = replace(
                self._report,
                snapshot_id=snapshot_id,
                failing_since_ms=None,
                last_failure="",
            )

    def snapshot_failed(self, reason: str, failures: int) -> None:
        if self._report is not None:
            since_ms = self._report.failing_since_ms or self.now_ms()
            self._report = replace(
                self._report,
                failed_snapshots=failures,
                failing_since_ms=since_ms,
                last_failure=reason,
            )

    def keep_if_due(self, view: CoordinatorView) -> ProgressReport | None:
        """Every few seconds, if something has changed; returns what is kept then."""
        if self.seconds() - self._kept_at < KEEP_EVERY_S:
            return None
        return self._keep(view)

    def close(self, view: CoordinatorView) -> None:
        """Keeps the last state as well. A store that hangs is not waited for."""
        self._keep(view)
        self._worker.close(_GRACE_S)

    def _keep(self, view: CoordinatorView) -> ProgressReport | None:
        if self._report is None:
            return None
        self._kept_at, report = self.seconds(), self._made(self._report, view)
        if report == self._kept:
            return None
        self._kept = report
        data = replace(report, written_at_ms=self.now_ms()).to_bytes()
        self._worker.start(lambda: self._value.write(data))
        return report

    def _made(self, report: ProgressReport, view: CoordinatorView) -> ProgressReport:
        now, now_ms = self.seconds(), self.now_ms()
        rate = self._rows / max(now - self._made_at, 1.0)
        self._rows, self._made_at = 0, now
        sources = {
            name: replace(source, position={})
            for name, source in self.progress.sources(view).items()
        }
        read = {name: source.rows_read for name, source in sources.items()}
        grown = {n for n, rows in read.items() if rows > self._read_before.get(n, rows)}
        self._read_before = read
        self._report = replace(
            report, last_rows_ms={**report.last_rows_ms, **dict.fromkeys(grown, now_ms)}
        )
        return replace(
            self._report,
            rows_per_second=round(rate, 1),
            sources=sources,
            stages=self.progress.stages(view),
            committing=dict(self.committing()),
        )

    def _note(self, notification: Notification) -> None:
        if isinstance(notification, Died):
            _logger.warning(
                "job %r: its progress could not be saved: %r", self.job, notification.error
            )


def read_report(store: Store, job: str) -> tuple[int, ProgressReport] | None:
    """Returns the newest report of a job, and the execution that has written it; None: none has.

    Raises:
        StoreError: it cannot be read now.
    """
    found = read_kept(store, job, _REPORT)
    if found is None:
        return None
    execution_id, data = found
    return execution_id, ProgressReport.from_bytes(data, job)
