"""How often a stream reports: an event costs Dagster 8.6 KB and is kept for ever. Pure."""

from __future__ import annotations

from dagster_jet.execution.events import SnapshotCommitted


class ReportSchedule:
    """Holds the newest committed snapshot until it may be reported.

    At most one report per interval; what is held back is not lost, for a newer snapshot's totals
    contain the older one's. The clock is handed in.
    """

    def __init__(self, min_report_interval_seconds: float) -> None:
        self._interval = min_report_interval_seconds
        self._reported_at: float | None = None
        self._pending: SnapshotCommitted | None = None
        self._newest: SnapshotCommitted | None = None

    def offer(self, event: SnapshotCommitted) -> None:
        """Take a committed snapshot; it replaces the one that is waiting."""
        self._pending = self._newest = event

    def note_report(self, now: float) -> None:
        """Something else was reported for all assets (what was restored)."""
        self._reported_at = now

    def take(self, now: float) -> SnapshotCommitted | None:
        """Return the snapshot to report now, None if there is none or it is too early."""
        if self._reported_at is not None and now - self._reported_at < self._interval:
            return None
        return self._take(now)

    def take_last(self, now: float) -> SnapshotCommitted | None:
        """Return what is still unreported at the end of a run, however early it is."""
        return self._take(now)

    def repeat_last(self) -> SnapshotCommitted | None:
        """Return the newest snapshot even if it was taken: its report may have been cut short."""
        return self._newest

    def _take(self, now: float) -> SnapshotCommitted | None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._reported_at = now
        return pending
