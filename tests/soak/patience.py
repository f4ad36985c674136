"""Time limits on a machine that others use, too: of each second our share counts."""

from __future__ import annotations

import os
import time

_LOOK_S = 10.0
"""A look that comes later after the one before it: this process was stopped, or had no core."""


def slowness() -> float:
    """Factor by which this machine is slower than one of our own, by its load."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Waiting:
    """Waits for progress.

    Attributes:
        most_s: how long it may take on a machine of our own.
        slowest: the greatest slowness that was seen.
    """

    def __init__(self, most_s: float) -> None:
        self.most_s, self.slowest = most_s, 1.0
        self._waited_s, self._looked_at = 0.0, time.monotonic()

    def progress(self) -> None:
        """Begins anew."""
        self._waited_s, self._looked_at = 0.0, time.monotonic()

    def has_lasted(self) -> bool:
        """Whether it takes too long; called again and again."""
        now, slow = time.monotonic(), slowness()
        self._waited_s += min(now - self._looked_at, _LOOK_S) / slow
        self._looked_at, self.slowest = now, max(self.slowest, slow)
        return self._waited_s > self.most_s
