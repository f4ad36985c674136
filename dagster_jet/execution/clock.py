"""An execution's clock."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

_CORRECTION_MAX = 0.1
"""Maximum correction as a share of the elapsed time, so that a wall clock that is a year ahead for
a minute has little effect."""


@dataclass
class Clock:
    """Wall-clock time of the start plus monotonic elapsed time; ignores clock jumps.

    After a suspended machine this clock is behind. It then runs a little faster or slower, never
    backwards, until it agrees with the wall clock.
    """

    _now_s: float = field(default_factory=time.time)
    _at: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now_ms(self) -> int:
        with self._lock:
            at = time.monotonic()
            passed, self._at = at - self._at, at
            behind = time.time() - (self._now_s + passed)
            most = _CORRECTION_MAX * passed
            self._now_s += passed + min(max(behind, -most), most)
            return round(self._now_s * 1000)
