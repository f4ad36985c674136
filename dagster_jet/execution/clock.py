"""An execution's clock."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

_CORRECTION_MAX = 0.1
"""Of the time that has passed: a wall clock that is a year ahead for a minute does no harm."""


@dataclass
class Clock:
    """Wall-clock time as of the start, going on monotonically: clock jumps do not matter.

    A machine that was suspended finds its own clock behind. So it goes a little faster or slower,
    never back, for as long as the wall clock says something else.
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
