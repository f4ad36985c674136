"""Progress reports of long operations on the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UpkeepProgress:
    """Progress of an operation at one time.

    Attributes:
        step: the current step: "registers", "copy", "verify", "rewrite", "gc".
        done: finished units of ``total``: registers, replicas of partitions ("copy"),
            partitions ("verify", "rewrite"), or members ("gc").
        total: number of units.
        bytes: bytes of values copied or read so far.
        seconds: time since the step began.
    """

    step: str
    done: int
    total: int
    bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """The average rate since the step began."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


OnProgress = Callable[[UpkeepProgress], None]
"""Called often, on the working thread; an exception ends the work, which can be resumed."""


def unwatched(_: UpkeepProgress) -> None:
    """Ignore the progress."""


@dataclass
class Steps:
    """Counts one step's work and reports it to the watcher."""

    step: str
    total: int
    watcher: OnProgress = unwatched
    done: int = 0
    bytes: int = 0
    _began: float = field(default_factory=time.monotonic)

    def advance(self, *, done: int = 0, bytes: int = 0) -> None:
        """Add to the finished units and bytes, and report."""
        self.done += done
        self.bytes += bytes
        self.watcher(
            UpkeepProgress(
                self.step, self.done, self.total, self.bytes, time.monotonic() - self._began
            )
        )
