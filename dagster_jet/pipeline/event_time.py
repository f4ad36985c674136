"""Where the rows of a stream have their event time."""

from __future__ import annotations

from dataclasses import dataclass

RESULT_LAG_MS = 1
"""The event time of a window's result lies inside of the window: so long before its end."""


@dataclass(frozen=True)
class EventTime:
    """A column of the rows, and how it is read."""

    column: str
    """A timestamp, or milliseconds since 1970."""
    is_window_end: bool = False
    """It is the exclusive end of the window that the row is the result of."""

    @property
    def lag_ms(self) -> int:
        """How long before what the column says."""
        return RESULT_LAG_MS if self.is_window_end else 0

    def __str__(self) -> str:
        return f"{self.column} of a window" if self.is_window_end else self.column
