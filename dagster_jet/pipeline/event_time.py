"""Location of event time in the rows of a stream."""

from __future__ import annotations

from dataclasses import dataclass

RESULT_LAG_MS = 1
"""A window's result has its event time inside the window, this many ms before its end."""


@dataclass(frozen=True)
class EventTime:
    """Event-time column of the rows, and its interpretation."""

    column: str
    """Name of a column with a timestamp, or with milliseconds since 1970."""
    is_window_end: bool = False
    """Whether the column is the exclusive end of the window that the row is the result of."""

    @property
    def lag_ms(self) -> int:
        """Subtracted from the column's value to get the event time, in ms."""
        return RESULT_LAG_MS if self.is_window_end else 0

    def __str__(self) -> str:
        return f"{self.column} of a window" if self.is_window_end else self.column
