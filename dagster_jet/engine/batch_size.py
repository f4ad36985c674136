"""How many rows the next epoch takes: aim at a duration, learn from every epoch."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_ROWS = 10_000
"""The first epoch says how fast this pipeline is; it must not drown in a backlog."""


@dataclass
class BatchSizer:
    """Grows at most twofold and shrinks at most to half per epoch, within [1, `max_rows`]."""

    target_ms: float
    max_rows: int
    rows: int = FIRST_ROWS

    def __post_init__(self) -> None:
        self.rows = min(self.rows, self.max_rows)

    def learn(self, rows: int, duration_ms: float) -> None:
        """One epoch took `rows` rows and so long.

        A small epoch says little about the rate, because its duration is mostly fixed cost:
        grow only if the epoch was about as large as allowed.
        """
        if rows <= 0 or duration_ms <= 0:
            return
        factor = min(2.0, max(0.5, self.target_ms / duration_ms))
        if factor >= 1 and rows < 0.5 * self.rows:
            return
        base = max(rows, 1) if factor < 1 else self.rows
        self.rows = max(1, min(self.max_rows, int(base * factor)))
