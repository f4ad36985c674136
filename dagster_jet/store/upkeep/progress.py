"""How far a long piece of work on the store has come, for those who watch it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class UpkeepProgress:
    """One moment of a piece of work.

    Attributes:
        step: what is being done: "registers", "copy", "verify", "gc".
        done: how many of ``total`` are finished: registers, replicas of partitions ("copy"),
            partitions ("verify"), or members ("gc").
        total: how many there are.
        bytes: how many bytes of values were copied or read so far.
        seconds: since the step began.
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
"""Called often, in the working thread; what it raises ends the work, which can be resumed."""


def unwatched(_: UpkeepProgress) -> None:
    """Do nothing: the progress of work that nobody watches."""


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
        """Add to what is done."""
        self.done += done
        self.bytes += bytes
        self.watcher(
            UpkeepProgress(
                self.step, self.done, self.total, self.bytes, time.monotonic() - self._began
            )
        )
