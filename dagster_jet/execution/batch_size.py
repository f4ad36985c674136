"""How many rows the next epoch takes: aim at a duration, learn from every epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_ROWS = 10_000
"""The first epoch says how fast this pipeline is; it must not drown in a backlog."""

_FORGET = 0.8
_STEP_MAX = 2.0


@dataclass
class _Fit:
    """duration = fixed + slope * rows, by least squares; older epochs count less and less."""

    weight: float = 0.0
    rows: float = 0.0
    ms: float = 0.0
    rows_rows: float = 0.0
    rows_ms: float = 0.0

    def add(self, rows: float, ms: float) -> None:
        for name, value in (
            ("weight", 1.0),
            ("rows", rows),
            ("ms", ms),
            ("rows_rows", rows * rows),
            ("rows_ms", rows * ms),
        ):
            setattr(self, name, _FORGET * getattr(self, name) + value)

    def fixed_and_slope(self) -> tuple[float, float]:
        mean_rows, mean_ms = self.rows / self.weight, self.ms / self.weight
        variance = self.rows_rows / self.weight - mean_rows * mean_rows
        if variance <= (0.05 * mean_rows) ** 2:
            # All epochs alike: as if every millisecond were due to rows. Changing the size tells.
            return 0.0, mean_ms / mean_rows
        slope = (self.rows_ms / self.weight - mean_rows * mean_ms) / variance
        return max(0.0, mean_ms - slope * mean_rows), slope


@dataclass
class BatchSizer:
    """Changes the size at most twofold per epoch, within [1, `max_rows`].

    An epoch costs something however few rows it has. Where that alone is most of the target, small
    epochs would be all overhead: the aim is then twice the fixed cost.
    """

    target_ms: float
    max_rows: int
    rows: int = FIRST_ROWS
    _fit: _Fit = field(default_factory=_Fit)

    def __post_init__(self) -> None:
        self.rows = min(self.rows, self.max_rows)

    def learn(self, rows: int, duration_ms: float) -> None:
        """One epoch took `rows` rows and so long."""
        if rows <= 0 or duration_ms <= 0:
            return
        self._fit.add(rows, duration_ms)
        if rows < 0.5 * self.rows and duration_ms < self.target_ms:
            return  # there was not more to take: no reason to change
        fixed, slope = self._fit.fixed_and_slope()
        aim = max(self.target_ms, 2 * fixed)
        wanted = (aim - fixed) / slope if slope > 0 else self.rows * _STEP_MAX
        step = min(_STEP_MAX, max(1 / _STEP_MAX, wanted / self.rows))
        self.rows = max(1, min(self.max_rows, int(self.rows * step)))
