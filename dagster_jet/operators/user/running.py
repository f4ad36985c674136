"""The function of `running`: each row with values over the rows of its key up to it.

    Running((("before", Call("lag", "amount", 1)), ("total", Call("sum", "amount"))))

It is a function of `map_stateful`, whose state has a value for each column. Nulls are ignored,
except by `lag` and `lead`, as in SQL. With `lead` a row waits in the state for the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, TypeAlias

from dagster_jet.operators.user.state import State, with_columns_of_now

Row: TypeAlias = "dict[str, Any]"
LEAD = "lead"
_ALL_DIGITS = Context(prec=76)
"""Decimal context of sums. Python's default has 28 digits."""
_WAITS = ""
"""Key in the state of the row that waits."""


@dataclass(frozen=True)
class Call:
    """One column of the result."""

    function: str
    column: str
    """Its argument; `*` of `count`."""
    offset: int = 1
    """How many rows back, of `lag`."""

    @property
    def text(self) -> str:
        """Key of its value in the state; result columns may be renamed."""
        return f"{self.function}({self.column},{self.offset})"


def _lag(before: list[Any], value: Any, offset: int) -> tuple[list[Any], Any]:
    found = before[0] if len(before) == offset else None
    return [*before, value][-offset:], found


def _ignoring_nulls(merge: Callable[[Any, Any], Any]) -> Callable[[Any, Any, int], tuple[Any, Any]]:
    def step(before: Any, value: Any, _: int) -> tuple[Any, Any]:
        after = before if value is None else value if before is None else merge(before, value)
        return after, after

    return step


def _count(before: int, value: Any, _: int) -> tuple[int, int]:
    after = before + (value is not None)
    return after, after


def _avg(before: tuple[int, float], value: Any, _: int) -> tuple[tuple[int, float], float | None]:
    n, total = before
    if value is not None:
        n, total = n + 1, total + float(value)
    return (n, total), total / n if n else None


def _plus(a: Any, b: Any) -> Any:
    return _ALL_DIGITS.add(a, b) if isinstance(a, Decimal) else a + b


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _greater(a: Any, b: Any) -> Any:
    return b if b > a or _is_nan(b) else a  # NaN is the greatest, as in SQL


def _smaller(a: Any, b: Any) -> Any:
    return b if b < a or _is_nan(a) else a


FUNCTIONS: dict[str, tuple[Any, Callable[[Any, Any, int], tuple[Any, Any]]]] = {
    "lag": ([], _lag),
    "sum": (None, _ignoring_nulls(_plus)),
    "count": (0, _count),
    "avg": ((0, 0.0), _avg),
    "min": (None, _ignoring_nulls(_smaller)),
    "max": (None, _ignoring_nulls(_greater)),
    "first": (None, _ignoring_nulls(lambda a, b: a)),
    "last": (None, _ignoring_nulls(lambda a, b: b)),
}
"""By name: the value of a new key, and (value, value of the row, offset) -> (new value, result)."""


@dataclass(frozen=True)
class Running:
    """(state, row) -> the row with further columns."""

    calls: tuple[tuple[str, Call], ...]
    names: tuple[str, ...] = ()
    """Columns of the results; known after the analysis. Only used with `lead`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Running, (self.calls, self.names)  # without what a process has cached

    @cached_property
    def _steps(self) -> list[tuple[Any, ...]]:
        """(result, key in the state, column, begin, step, offset) of each call but `lead`."""
        return [
            (name, call.text, call.column, *FUNCTIONS[call.function], call.offset)
            for name, call in self.calls
            if call.function != LEAD
        ]

    @cached_property
    def _leads(self) -> dict[str, str]:
        """Columns of `lead` by the name of the result."""
        return {name: call.column for name, call in self.calls if call.function == LEAD}

    def __call__(self, state: State[dict[str, Any]], row: Row) -> Row | None:
        leads, results, values = self._leads, dict(row), state.value
        for name, key, column, begin, step, offset in self._steps:
            value = 1 if column == "*" else row[column]
            values[key], results[name] = step(values.get(key, begin), value, offset)
        if not leads:
            return results
        results.update(dict.fromkeys(leads))
        waited: Row | None = values.get(_WAITS)
        state.value = {**values, _WAITS: results}
        if waited is None:
            return None
        return with_columns_of_now(waited, self.names) | {n: row[c] for n, c in leads.items()}

    def without_next(self, key: Row, value: dict[str, Any], watermark_ms: int) -> Row | None:
        """`on_evict`: no row has followed the last one in time. None waits if `lead` was added to
        the pipeline after the last row of the key."""
        waited: Row | None = value.get(_WAITS)
        return None if waited is None else with_columns_of_now(waited, self.names)
