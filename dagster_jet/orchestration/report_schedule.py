"""Limits how often a stream is reported: Dagster keeps 10 KB per event for ever. Pure.

Reports become rarer the longer a run lasts. A new stream is watched closely; a stream that has been
running for days does not need two points a minute, and its events would fill the log.
"""

from __future__ import annotations

from dagster_jet.execution.events import SnapshotCommitted

_REPORTS_BEFORE_IT_GROWS = 100


class ReportSchedule:
    """Holds the newest committed snapshot until it may be reported.

    There is at most one report per interval. No data is lost: the totals of a newer snapshot
    include those of older ones. The interval is a hundredth of the time since the first report,
    bounded by the shortest and the longest interval. The caller passes the time.

    Args:
        shortest_seconds: shortest interval; 0 reports every snapshot, however long the run lasts.
        longest_seconds: longest interval; no effect if it is below the shortest.
    """

    def __init__(self, shortest_seconds: float, longest_seconds: float = 0.0) -> None:
        self._shortest, self._longest = shortest_seconds, longest_seconds
        self._first_at: float | None = None
        self._reported_at: float | None = None
        self._pending: SnapshotCommitted | None = None
        self._newest: SnapshotCommitted | None = None

    def offer(self, event: SnapshotCommitted) -> None:
        """Take a committed snapshot; it replaces a pending one."""
        self._pending = self._newest = event

    def note_report(self, now: float) -> None:
        """Record that all assets were reported."""
        self._reported_at = now
        if self._first_at is None:
            self._first_at = now

    def note_restore(self, snapshot_id: int, now: float) -> None:
        """Record that all assets were reported at the snapshot that an execution is restored from.

        A pending one that is not newer is forgotten: the last execution of this process committed
        it, and its report would follow a newer one.
        """
        self.note_report(now)
        if self._newest is not None and self._newest.snapshot_id <= snapshot_id:
            self._pending = self._newest = None

    def take(self, now: float) -> SnapshotCommitted | None:
        """Return the snapshot to report now; None if there is none or it is too early."""
        if self._reported_at is not None and now - self._reported_at < self._interval(now):
            return None
        return self._take(now)

    def take_last(self, now: float) -> SnapshotCommitted | None:
        """Return the unreported snapshot at the end of a run, regardless of the interval."""
        return self._take(now)

    def repeat_last(self) -> SnapshotCommitted | None:
        """Return the newest snapshot even if it was taken: its report may have been interrupted."""
        return self._newest

    def _take(self, now: float) -> SnapshotCommitted | None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self.note_report(now)
        return pending

    def _interval(self, now: float) -> float:
        if self._shortest == 0 or self._first_at is None:
            return self._shortest
        grown = min((now - self._first_at) / _REPORTS_BEFORE_IT_GROWS, self._longest)
        return max(grown, self._shortest)
