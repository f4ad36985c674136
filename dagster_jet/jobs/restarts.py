"""Limit of consecutive failed executions, and the pause before the next one."""

from __future__ import annotations

import time
from collections import deque

_PAUSE_FIRST_MS, _PAUSE_MAX_MS = 500, 30_000
WINDOW_S = 600


class Restarts:
    """Failed executions since the job last made progress, and those of the last ten minutes.

    Failures may be an hour apart, so only progress clears them, never time alone.

    Args:
        attempts_max: number of failures that are followed by another execution.
    """

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self._failed_at: deque[float] = deque()

    @property
    def attempts(self) -> int:
        return len(self._failed_at)

    @property
    def exhausted(self) -> bool:
        return self.attempts > self._attempts_max

    @property
    def pause_ms(self) -> int:
        """Doubles after each failure."""
        return min(_PAUSE_MAX_MS, _PAUSE_FIRST_MS << max(0, self.attempts - 1))

    def failed(self, *, progressed: bool = False) -> None:
        """Counts an execution that ended unrequested.

        Args:
            progressed: it made progress before (`EndedExecution.progressed`).
        """
        now = time.monotonic()
        while progressed and self._failed_at and now - self._failed_at[0] > WINDOW_S:
            self._failed_at.popleft()
        self._failed_at.append(now)
