"""Estimates the fixed cost of an epoch and the cost per row from the last epochs."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

_EPOCHS = 10
"""Number of epochs that count; costs change with the state and the load of the machine."""
_SEVERAL = 3
_ALIKE = 1.3
"""Smallest ratio of two epoch sizes from which the cost per row is estimated."""


@dataclass(frozen=True)
class EpochCost:
    """duration = fixed + row * rows."""

    fixed_ms: float
    row_ms: float

    def rows_within(self, duration_ms: float) -> float:
        """Returns the number of rows that fit into an epoch of this duration."""
        return _ratio(max(0.0, duration_ms - self.fixed_ms), self.row_ms)

    def rows_at(self, overhead: float) -> float:
        """Returns the number of rows at which the fixed cost is this share of the epoch."""
        return _ratio(self.fixed_ms * (1 - overhead) / overhead, self.row_ms)

    def bound(self, duration_ms: float) -> float:
        """Returns the bound of an epoch's duration: at least twice the fixed cost."""
        return max(duration_ms, 2 * self.fixed_ms)


@dataclass
class MeasuredEpochs:
    """The last epochs with rows.

    Disturbances (a cold JVM, garbage collection, a busy machine) make an epoch longer, never
    shorter. So the estimate is the line through two epochs: the shortest one and the one with the
    most rows per second. All other epochs are above this line.
    """

    _last: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_EPOCHS))

    def add(self, rows: float, ms: float) -> None:
        """Adds an epoch with this number of rows and duration in ms."""
        self._last.append((rows, ms))

    @property
    def are_many(self) -> bool:
        """Returns whether the maximum number of epochs is reached."""
        return len(self._last) == _EPOCHS

    @property
    def are_several(self) -> bool:
        """Returns whether there are enough epochs for an estimate."""
        return len(self._last) >= _SEVERAL

    def cost(self) -> EpochCost | None:
        """Returns the estimate; None if the epochs do not determine it."""
        if not self._last:
            return None
        rows, ms = min(self._last, key=lambda one: (one[1], -one[0]))
        fastest = max(range(len(self._last)), key=lambda n: self._last[n][0] / self._last[n][1])
        more, more_ms = self._last[fastest]
        if more > _ALIKE * rows:
            row_ms = (more_ms - ms) / (more - rows)
            return EpochCost(ms - row_ms * rows, row_ms)
        since = list(self._last)[fastest + 1 :]
        if any(size > _ALIKE * more for size, _ in since):
            return EpochCost(0.0, more_ms / more)  # larger epochs were no faster
        return None  # earlier larger ones say little: a job gets faster during warm-up


def _ratio(ms: float, row_ms: float) -> float:
    return ms / row_ms if row_ms > 0 else math.inf
