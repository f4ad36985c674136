"""The function of `match`: finds rows of a key that follow each other.

It is a function of `map_stateful` in order of event time. Each row brings the numbers of the
conditions that it meets. The state of a key are its open matches: the time of the first row, and
the rows so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from dagster_jet.operators.user.state import State, time_ms, with_columns_of_now

Row: TypeAlias = "dict[str, Any]"
ROW, MEETS = "__row", "__meets"
"""Columns: the row as a struct; per condition whether the row meets it, that of `unless` last."""


@dataclass(frozen=True)
class Pattern:
    """(state, row) -> the matches that the row completes."""

    keys: tuple[str, ...]
    time: str
    """The event-time column."""
    steps: tuple[str, ...]
    within_ms: int
    names: tuple[str, ...] = ()
    """Columns of a row; known after the analysis."""

    def __call__(self, state: State[list[tuple[int, list[Row]]]], row: Row) -> list[Row]:
        now, meets = time_ms(row[self.time]), row[MEETS]
        found, still_open = [], []
        for begun, rows in [] if meets[-1] else state.value:
            if now - begun > self.within_ms or len(rows) >= len(self.steps):
                continue  # there were more steps before the pipeline was changed
            after = [*rows, row[ROW]] if meets[len(rows)] else rows
            if len(after) == len(self.steps):
                found.append(self._match(row, after))
            else:
                still_open.append((begun, after))
        if meets[0] and not meets[-1]:
            still_open.append((now, [row[ROW]]))
        state.value = still_open
        if not still_open:
            state.clear()
        return found

    def _match(self, row: Row, rows: list[Row]) -> Row:
        own = {column: row[column] for column in (*self.keys, self.time)}
        shown = (with_columns_of_now(one, self.names) for one in rows)
        return own | dict(zip(self.steps, shown, strict=True))
