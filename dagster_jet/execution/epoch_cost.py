"""What an epoch costs in any case and what for every row, estimated from the last epochs."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

_EPOCHS = 10
"""So many count: what a job costs changes, with its state and with what else the machine does."""
_SEVERAL = 3
_ALIKE = 1.3
"""Epochs whose sizes differ by a smaller factor do not show what a row costs."""


@dataclass(frozen=True)
class EpochCost:
    """duration = fixed + row * rows."""

    fixed_ms: float
    row_ms: float

    def rows_within(self, duration_ms: float) -> float:
        """How many rows fit into an epoch of that duration."""
        return _ratio(max(0.0, duration_ms - self.fixed_ms), self.row_ms)

    def rows_at(self, overhead: float) -> float:
        """The size at which the fixed cost is that part of the epoch."""
        return _ratio(self.fixed_ms * (1 - overhead) / overhead, self.row_ms)

    def bound(self, duration_ms: float) -> float:
        """A bound for an epoch; not below twice the fixed cost, or epochs were all overhead."""
        return max(duration_ms, 2 * self.fixed_ms)


@dataclass
class MeasuredEpochs:
    """The last epochs with rows.

    What disturbs an epoch makes it longer, never shorter: a JVM that is not warm yet, a collection
    of garbage, a busy machine. So two of them say what epochs cost, the shortest one and the one
    with the most rows per second: the line through both is below all the others.
    """

    _last: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_EPOCHS))

    def add(self, rows: float, ms: float) -> None:
        """One more epoch."""
        self._last.append((rows, ms))

    @property
    def are_many(self) -> bool:
        """As many as ever count."""
        return len(self._last) == _EPOCHS

    @property
    def are_several(self) -> bool:
        """Enough of them to be no accident."""
        return len(self._last) >= _SEVERAL

    def cost(self) -> EpochCost | None:
        """None: nothing is known yet, or no more than that no other size was better."""
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
            return EpochCost(0.0, more_ms / more)  # larger ones were no faster
        return None  # larger ones before it say little: a job that warms up gets faster by itself


def _ratio(ms: float, row_ms: float) -> float:
    return ms / row_ms if row_ms > 0 else math.inf
