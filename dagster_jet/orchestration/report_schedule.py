"""How often a stream reports: an event costs Dagster 10 KB and is kept for ever. Pure.

The longer a run lasts, the less often. Who starts a stream watches it; of one that has been running
for days nobody needs two points a minute, and its events are what an event log is full of.
"""

from __future__ import annotations

from dagster_jet.execution.events import SnapshotCommitted

_REPORTS_BEFORE_IT_GROWS = 100


class ReportSchedule:
    """Holds the newest committed snapshot until it may be reported.

    At most one report per interval; what is held back is not lost, for a newer snapshot's totals
    contain the older one's. The interval is a hundredth of the time since the first report, between
    the shortest and the longest. The clock is handed in.

    Args:
        shortest_seconds: 0 reports every snapshot, however long the run lasts.
        longest_seconds: no effect below the shortest.
    """

    def __init__(self, shortest_seconds: float, longest_seconds: float = 0.0) -> None:
        self._shortest, self._longest = shortest_seconds, longest_seconds
        self._first_at: float | None = None
        self._reported_at: float | None = None
        self._pending: SnapshotCommitted | None = None
        self._newest: SnapshotCommitted | None = None

    def offer(self, event: SnapshotCommitted) -> None:
        """Take a committed snapshot; it replaces the one that is waiting."""
        self._pending = self._newest = event

    def note_report(self, now: float) -> None:
        """Something was reported for all assets."""
        self._reported_at = now
        if self._first_at is None:
            self._first_at = now

    def take(self, now: float) -> SnapshotCommitted | None:
        """Return the snapshot to report now, None if there is none or it is too early."""
        if self._reported_at is not None and now - self._reported_at < self._interval(now):
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
            self.note_report(now)
        return pending

    def _interval(self, now: float) -> float:
        if self._shortest == 0 or self._first_at is None:
            return self._shortest
        grown = min((now - self._first_at) / _REPORTS_BEFORE_IT_GROWS, self._longest)
        return max(grown, self._shortest)
