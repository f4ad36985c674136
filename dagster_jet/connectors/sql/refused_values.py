"""Predicts, without asking the database, values that a table never takes.

A task checks its rows before it stages them. A decided row must be written, so one that the
database refuses would block all others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.sql.column_fit import Column
from dagster_jet.connectors.sql.json_values import json_texts
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.contract import Refused
from dagster_jet.operators.rows.far_times import python_rows
from dagster_jet.operators.user.dead_letters import row_json
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IS_REFUSED = "__refused"
_FIRST_DAY = -719_162
"""First day of year 1, in days since 1970."""
_LAST_DAYS = {9999: 2_932_896, 32767: 11_248_737}
"""Last days of years: of Python's, and of Arrow's, which writes no text of a later one."""
_DAY_US = 86_400_000_000
_UUID = r"^[{]?[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}[}]?$"
_ZERO = r"(^|[^\\])(\\\\)*\\u0000"
"""A zero byte, as JSON escapes it."""
_SURROGATES = re.compile(r"[\ud800-\udfff]")

Found = Iterator[tuple[pa.Array, str]]
"""Masks of refused rows, each with a reason."""


@dataclass(frozen=True)
class RefusedValues:
    """Checks rows against the columns of one table."""

    dialect: str
    """Kind of database; "": none, whose limits are those of Python."""
    columns: Mapping[str, Column]
    key: Sequence[str] = ()
    """Key of an upsert, where null is not valid."""

    def of(
        self, rows: pa.RecordBatch, absent: Mapping[str, pa.Array] | None = None
    ) -> dict[int, str]:
        """By row number, why the table refuses the row.

        Args:
            absent: mask per column of rows whose null is not a value but means "not given".
        """
        found: dict[int, str] = {}
        for name, values in zip(rows.schema.names, rows.columns, strict=True):
            is_given = None if absent is None or name not in absent else pc.invert(absent[name])
            for mask, why in self._of_column(self.columns.get(name), name, values):
                is_bad = mask if is_given is None else pc.and_(mask, is_given)
                if pc.any(is_bad).as_py():
                    for number in pc.indices_nonzero(is_bad.fill_null(False)).to_pylist():
                        found.setdefault(number, f"{name} {why}")
        return found

    def _of_column(self, column: Column | None, name: str, values: pa.Array) -> Found:
        if values.null_count and (name in self.key or (column and not column.takes_null)):
            says = "is null, and part of the key" if name in self.key else "is null"
            yield pc.is_null(values), says
        if values.null_count == len(values):
            return
        kind = values.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            yield from self._of_times(values)
        if column is None:
            return
        if pa.types.is_nested(kind):
            if self.dialect == "postgresql" and column.shown == "jsonb":
                texts = json_texts(values)
                yield pc.match_substring_regex(texts, _ZERO), "has a zero byte, which jsonb refuses"
            elif column.kind == "text":
                yield from self._of_texts(column, json_texts(values))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            yield from self._of_texts(column, values)
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            yield from _of_bytes(column, pc.binary_length(values))
        elif pa.types.is_floating(kind):
            yield from self._of_floats(values)
        elif pa.types.is_integer(kind) and column.is_unsigned:
            yield pc.less(values, 0), f"is negative, and {column.shown} has no sign"

    def _of_texts(self, column: Column, texts: pa.Array) -> Found:
        if self.dialect == "postgresql":
            yield pc.match_substring(texts, "\0"), "has a zero byte, which PostgreSQL refuses"
        if column.kind == "uuid":
            yield pc.invert(pc.match_substring_regex(texts, _UUID)), "is no UUID"
        if column.kind == "json":
            is_ours = _takes_json if column.shown == "jsonb" else _is_json
            yield _mask(texts, lambda text: not is_ours(text)), "is no JSON that the column takes"
        if column.characters is not None:
            length, most = pc.utf8_length(texts), column.characters
            yield pc.greater(length, most), f"is longer than {column.shown}"
            if column.is_padded and self.dialect == "postgresql":
                yield pc.less(length, most), f"is shorter than {column.shown}, which adds blanks"
        if column.is_padded and self.dialect != "postgresql":
            yield pc.ends_with(texts, " "), f"ends with a blank, which {column.shown} drops"
        if column.bytes is not None:
            yield from _of_bytes(column, pc.binary_length(texts))

    def _of_floats(self, values: pa.Array) -> Found:
        if self.dialect in ("mysql", "mariadb"):
            yield pc.invert(pc.is_finite(values)), "is no finite number"
        elif self.dialect == "sqlite":
            yield pc.is_nan(values), "is NaN, which SQLite keeps as null"

    def _of_times(self, values: pa.Array) -> Found:
        """PostgreSQL also takes years above 9999, but Python's clients cannot read them; and above
        32767, of which Arrow writes no text for it."""
        if pa.types.is_date(values.type):
            numbers, per_day = pc.cast(values, pa.date32()).cast(pa.int32()), 1
        else:
            numbers = pc.cast(values, pa.timestamp("us", values.type.tz)).cast(pa.int64())
            per_day = _DAY_US
        yield pc.less(numbers, _FIRST_DAY * per_day), "is before the year 1"
        year = 32767 if self.dialect == "postgresql" else 9999
        is_after = pc.greater_equal(numbers, (_LAST_DAYS[year] + 1) * per_day)
        yield is_after, f"is after the year {year}"


def marked(frame: DataFrame, values: RefusedValues) -> DataFrame:
    """Returns the rows with the column `IS_REFUSED`."""
    from pyspark.sql.types import StructType

    names = frame.columns
    numbered = frame.toDF(*(f"c{number}" for number in range(len(names))))
    schema = StructType(list(numbered.schema)).add(IS_REFUSED, "boolean")
    rows = numbered.mapInArrow(OwnTask(_Marking(values, tuple(names))), schema)
    return rows.toDF(*names, IS_REFUSED)


@dataclass(frozen=True)
class _Marking:
    values: RefusedValues
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            refused = self.values.of(batch.rename_columns(list(self.names)))
            is_refused = np.isin(np.arange(batch.num_rows), list(refused))
            yield batch.append_column(IS_REFUSED, pa.array(is_refused))


def refused_row(
    place: SqlPlace, key: Sequence[str], rows: pa.RecordBatch, number: int, why: str
) -> Refused:
    """The refused row `number`, as text for a dead letter."""
    [row] = python_rows(rows.slice(number, 1))
    shown = row_json({name: row[name] for name in key}) if key else None
    return Refused(f"the table {place.table!r} refuses it: {why}", row_json(row), shown)


def _of_bytes(column: Column, length: pa.Array) -> Found:
    if column.bytes is not None:
        yield pc.greater(length, column.bytes), f"is longer than {column.shown}"
        if column.is_padded:
            yield pc.less(length, column.bytes), f"is shorter than {column.shown}, which adds zeros"


def _mask(texts: pa.Array, is_refused: Callable[[str], bool]) -> pa.Array:
    return pa.array([None if t is None else is_refused(t) for t in texts.to_pylist()], pa.bool_())


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return True


def _takes_json(text: str) -> bool:
    """jsonb stores texts decoded, so it refuses zero bytes and surrogates."""
    if not _is_json(text):
        return False
    plain = json.dumps(json.loads(text), ensure_ascii=False)
    return not re.search(_ZERO, plain) and not _SURROGATES.search(plain)


def _no_number(constant: str) -> Any:
    raise ValueError(constant)
