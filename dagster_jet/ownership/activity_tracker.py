"""Activity of an execution, and the time since its last progress; part of every lease renewal.

Times are durations by the execution's own clock, so that readers need not compare clocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dagster_jet.snapshot.record import Activity, Doing

_REASON_MAX = 500
"""Characters; short, because the record is written every few seconds."""


class ActivityTracker:
    """Activity of one execution. Its threads report events, the heartbeat reads the result.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._doing, self._since, self._reason = Doing.STARTING, clock(), ""
        self._failing: tuple[float, str] | None = None
        self._away: dict[str, tuple[float, str]] = {}
        self._is_healthy, self._looked_at = False, self._since

    def at(self, doing: Doing) -> None:
        """Report the present activity; a repeated one is not a change."""
        with self._lock:
            if doing is not self._doing:
                self._doing, self._since, self._reason = doing, self._clock(), ""

    def advanced(self, doing: Doing) -> None:
        """Report progress (an epoch has ended, or there is nothing to do) and the next activity."""
        with self._lock:
            self._doing, self._since, self._reason = doing, self._clock(), ""
            self._is_healthy = True

    def retries(self, reason: str) -> bool:
        """Report a failing operation that is being retried. Return whether the reason is new."""
        with self._lock:
            is_new, self._reason = reason != self._reason, reason
            return is_new

    def snapshot_failed(self, reason: str) -> None:
        """Report a failing snapshot: epochs go on, but their output is not committed."""
        with self._lock:
            since = self._failing[0] if self._failing is not None else self._clock()
            self._failing = since, reason

    def snapshot_completed(self) -> None:
        with self._lock:
            self._failing = None

    def source_away(self, source: str, reason: str | None) -> None:
        """Report a source that fails and is retried while others go on; None: it recovered.

        Other activities, or having nothing to do, do not hide it.
        """
        with self._lock:
            before = self._away.pop(source, None)
            if reason is not None:
                self._away[source] = before[0] if before is not None else self._clock(), reason

    def activity(self) -> Activity:
        with self._lock:
            if self._failing is not None:
                return self._activity(Doing.SAVING, *self._failing)
            away = min(self._away.values(), default=None)
            is_idle = self._doing is Doing.IDLE
            if away is not None and (is_idle or away[0] <= self._since):
                return self._activity(Doing.ASKING, *away)
            # Phase 2 may wait for a source, to acknowledge messages.
            reason = self._reason or (away[1] if away is not None else "")
            return self._activity(self._doing, self._since, reason)

    def take_healthy_ms(self) -> int:
        """Return the ms since the last call if the execution made progress in them; else 0."""
        with self._lock:
            now = self._clock()
            passed_ms, self._looked_at = round((now - self._looked_at) * 1000), now
            healthy, self._is_healthy = self._is_healthy, False
            return passed_ms if healthy and self._failing is None else 0

    def _activity(self, doing: Doing, since: float, reason: str) -> Activity:
        return Activity(doing, round((self._clock() - since) * 1000), reason[:_REASON_MAX])
