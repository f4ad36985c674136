"""Types of the functions and choices that users pass to stateful stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from dagster_jet.operators.user.state import State

OnError: TypeAlias = Literal["fail", "dead-letter"]
"""Treatment of a row that fails in a user's function."""
RowOrder: TypeAlias = Literal["event time", "arrival"]
"""Order in which a stage gets the rows of a key."""
TimerTime: TypeAlias = Literal["event time", "processing time"]
"""Clock of a stage's timers: the watermark, or the driver's wall clock."""
Rest: TypeAlias = Literal["drop", "emit"]
"""Treatment of rows that fill no window at the end of the input."""
Keep: TypeAlias = Literal["first", "last"]
"""Which of the duplicates of a row stays."""
StateFormatName: TypeAlias = Literal["plain", "pickle"]
"""Format of the saved data of a user's code; see `map_stateful`."""
S = TypeVar("S")
V = TypeVar("V")
"""A service: a client or a model."""
Row: TypeAlias = dict[str, Any]
"""A row by column name."""
Rows: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | None
"""Return type of a user's function: a row, rows, or None."""
RowFunction: TypeAlias = "Callable[[State[S], Row], Rows]"
"""(state, row) -> rows; see `map_stateful`."""
OnEvict: TypeAlias = Callable[[Row, S, int], Rows]
"""(key, expired state, a watermark in ms) -> rows."""
OnTimer: TypeAlias = "Callable[[State[S], Row, int], Rows]"
"""(state, key, time of the timer in ms) -> rows."""
TableFunction: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
"""(states, rows) -> (results, changed states), Arrow tables or None; see `map_stateful`."""
OnEvictTable: TypeAlias = Callable[[Any, Any], Any]
"""(Arrow table of expired states, array of a watermark in ms for each) -> results or None."""
ServiceFunction: TypeAlias = Callable[[V, Any], Any]
"""(service, Arrow table of rows) -> an Arrow table or None; see `map_using_service`."""
