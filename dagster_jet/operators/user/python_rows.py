"""Converts Arrow rows to Python dicts for a user's function, and back, checked against a schema.

Whole columns are converted in both directions; per row only a dict is built.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from functools import lru_cache
from itertools import chain, islice
from numbers import Integral
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import JetError
from dagster_jet.operators.rows.casting import cast_column

ROWS_MAX = 10_000_000
"""The most rows of one call. They are collected in memory, some hundred bytes each, so a generator
that does not end would end the worker, with no word of the stage."""
_NONE = object()
_EXPECTED: Sequence[tuple[Any, str, tuple[type, ...], tuple[type, ...]]] = (
    (pa.types.is_integer, "an integer", (Integral, np.bool_), ()),
    (pa.types.is_date, "a date", (date,), (datetime,)),
    (pa.types.is_timestamp, "a datetime", (datetime, np.datetime64), ()),
)
"""Python types of a column, as (type, name in messages, accepted types, refused subtypes)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def row_dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields one new dict per row. Timestamps with a time zone become datetimes in UTC.

    Raises:
        JetError: Python does not have a date or time of a column.
    """
    if table.num_columns == 0:
        return iter(())
    names = table.column_names
    values = (_named_values(*each) for each in zip(names, table.columns, strict=True))
    return map(_dict_maker(tuple(names)), *values)


@lru_cache(maxsize=64)
def _dict_maker(names: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """Returns a function from values to a dict with these keys. It costs less than half of
    `dict(zip(...))`, which is a tenth of a step. Names become literals, so any text is safe."""
    values = [f"value_{place}" for place in range(len(names))]
    items = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    maker: Callable[..., dict[str, Any]] = eval(f"lambda {', '.join(values)}: {{{items}}}", {})
    return maker


def _named_values(name: str, column: pa.ChunkedArray) -> list[Any]:
    try:
        return _python_values(column)
    except (OverflowError, ValueError):
        found = ""
        if pa.types.is_temporal(column.type):
            bounds = pc.min_max(column.cast(pa.string())).as_py()
            found = f": {bounds['min']} or {bounds['max']}"
        raise JetError(
            f"the column {name!r} has a date or time that Python does not have, which is before "
            f"the year 1 or after 9999{found}.",
            cure="Filter out such rows before the stage, or leave the column out with select().",
        ) from None


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.unit == "ns":
        return list(column.to_pylist())
    # numpy, because to_pylist takes microseconds per timestamp; addition, because it creates a
    # datetime with a zone directly.
    since = column.cast(pa.timestamp("us")).to_numpy().astype("datetime64[us]")
    epoch = _EPOCH if kind.tz is not None else _EPOCH.replace(tzinfo=None)
    passed = since.astype("timedelta64[us]").tolist()
    return [None if value is None else epoch + value for value in passed]


class OutputMismatchError(ValueError):
    """A return value does not fit the output schema."""

    cure = "Return dicts with exactly the columns of output_schema, in its types."

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row = row
        """Index of the bad row among the rows added, from 0."""


class OutputEndlessError(OutputMismatchError):
    """One call returned too many rows."""

    cure = "Let its generator end. If one row has so many results, return fewer at a time."


class OutputRows:
    """Collects the results of a function over all calls, and converts them to one table."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._width = len(schema)
        names = schema.names
        self._pick = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
        # A function may return parts of its state and change them later. Values are taken out of
        # the returned dict at once; mutable values must be copied as well.
        self._nested = any(pa.types.is_nested(field.type) for field in schema)
        # All rows are in one flat list: a tuple per row would keep Python's cyclic garbage
        # collector busy, which costs a third of a step.
        self._values: list[Any] = []

    def __len__(self) -> int:
        return len(self._values) // self._width

    def add(self, returned: Any) -> None:
        """Adds a row, several rows, or None for no row.

        Raises:
            OutputMismatchError: a row is not a mapping, or has other columns than the schema; or
                there are more than `ROWS_MAX` rows.
        """
        if type(returned) is dict and len(returned) == self._width and not self._nested:
            try:  # the common case
                self._values += self._pick(returned)
            except KeyError:
                self._add_row(returned)
        elif isinstance(returned, dict):
            self._add_row(returned)
        elif returned is None:
            return
        elif isinstance(returned, Mapping) or not hasattr(returned, "__iter__"):
            self._add_row(returned)
        else:
            rows = iter(returned)
            for row in islice(rows, ROWS_MAX):
                self._add_row(row)
            if next(rows, _NONE) is not _NONE:
                raise OutputEndlessError(f"more than {ROWS_MAX:,} rows at once", len(self))

    def cut(self, length: int) -> None:
        """Removes the last rows, so that `length` rows remain."""
        del self._values[length * self._width :]

    def check(self, since: int) -> None:
        """Checks the rows from index `since` on.

        Raises:
            OutputMismatchError: a value does not fit its column's type.
        """
        begin = since * self._width
        for place, field in enumerate(self._schema, begin):
            self._column(self._values[place :: self._width], field)

    def to_table(self) -> pa.Table:
        """
        Raises:
            OutputMismatchError: a value does not fit its column's type.
        """
        if not self._values:
            return self._schema.empty_table()
        columns = [
            self._column(self._values[place :: self._width], field)
            for place, field in enumerate(self._schema)
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _add_row(self, row: Any) -> None:
        try:
            values = self._pick(row)
            if len(row) != self._width:
                raise KeyError
        except (KeyError, IndexError, TypeError):
            raise OutputMismatchError(self._shape_mistake(row), len(self)) from None
        self._values += copy.deepcopy(values) if self._nested else values

    def _shape_mistake(self, row: Any) -> str:
        if not isinstance(row, Mapping):
            return f"a {type(row).__name__} where a row (a dict) was expected"
        missing = [name for name in self._schema.names if name not in row]
        extra = [str(name) for name in row if name not in self._schema.names]
        parts = [f"without the column {', '.join(missing)}"] if missing else []
        parts += [f"with the column {', '.join(extra)} that is not in output_schema"] * bool(extra)
        return f"a row {' and '.join(parts)}"

    def _column(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        try:
            array = strict_array(values, field)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for place, value in enumerate(values):
                try:
                    strict_array((value,), field)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    raise OutputMismatchError(
                        f"{value!r:.200} for the column {field.name}, which is {field.type} "
                        f"({error})",
                        place,
                    ) from None
            raise  # pragma: no cover - each value fits alone, but not all together
        return array


def strict_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Values as Arrow takes them, without what Arrow changes or leaves out in silence: fractions in
    place of integers, times in place of dates, numbers in place of times, numbers too large for a
    float, fields that a struct does not have, nulls where the field has none.

    Raises:
        TypeError: one has another type, or is null although the field has no nulls.
        ArrowInvalid: one does not fit the type.
    """
    _check(values, field)
    return pa.array(values, field.type)


def _check(values: Sequence[Any], field: pa.Field) -> None:
    """Checks the values, and those in lists, structs and maps."""
    kind = field.type
    if not field.nullable and any(value is None for value in values):
        raise TypeError("it must not be null")
    if pa.types.is_nested(kind):
        _check_parts([value for value in values if value is not None], kind)
    elif pa.types.is_float32(kind):
        cast_column(pa.array(values, pa.float64()), kind)
    for is_kind, name, accepted, refused in _EXPECTED:
        if is_kind(kind):
            for found in set(map(type, values)) - {type(None)}:
                if not issubclass(found, accepted) or issubclass(found, refused):
                    article = "an" if found.__name__[0] in "aeiou" else "a"
                    raise TypeError(f"expected {name}, got {article} {found.__name__}")


def _check_parts(values: Sequence[Any], kind: pa.DataType) -> None:
    if pa.types.is_struct(kind):
        named = [
            v if isinstance(v, Mapping) else dict(zip(kind.names, v, strict=False)) for v in values
        ]
        unknown = set(chain.from_iterable(named)).difference(kind.names)
        if unknown:
            raise TypeError(f"the struct has no field {min(unknown, key=str)!r}")
        for part in kind:
            try:
                _check([v.get(part.name) for v in named], part)
            except TypeError as error:
                raise TypeError(f"{part.name}: {error}") from None
    elif pa.types.is_map(kind):
        pairs = [p for v in values for p in (v.items() if isinstance(v, Mapping) else v)]
        _check([key for key, _ in pairs], kind.key_field)
        _check([value for _, value in pairs], kind.item_field)
    else:
        _check(list(chain.from_iterable(values)), kind.value_field)
