"""Checks whether the columns of rows fit the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.connectors.sql.sqlite_affinity import Affinity, keeps
from dagster_jet.operators.rows.nested_types import types_in

_OWN_EQUALITY = frozenset({"json", "parsed", "other"})
"""Kinds whose values are written as texts, but compared by rules of their own."""


@dataclass(frozen=True)
class Column:
    """Column of a table, as the database describes it."""

    name: str
    kind: str
    """boolean, integer, float, decimal, text, binary, date, timestamp, json, uuid, enum, parsed
    (parsed from text: an array) or other."""
    shown: str
    """Its type, for messages."""
    needs_value: bool = False
    """True if not null and without a default."""
    size: int | None = None
    """Bits of an integer; 32 or 64 for a float; digits before the point of a decimal."""
    scale: int | None = None
    """Digits after the point: of a decimal, of a float that rounds to them, of a time's seconds."""
    takes_null: bool = True
    is_generated: bool = False
    """The database computes the column and takes no value for it."""
    is_automatic: bool = False
    """The database fills a missing value so that no other row has it: a number, or a null."""
    is_unsigned: bool = False
    is_bytes: bool = False
    """MariaDB only: its values are bytes, although its kind is other: `bit(n)`, geometries."""
    is_padded: bool = False
    """`char(n)` or `binary(n)`: trailing blanks or zeros are added and removed."""
    characters: int | None = None
    """Maximum number of characters."""
    bytes: int | None = None
    """Maximum number of bytes of a binary value, or of a text in UTF-8."""
    equates: str = ""
    """Why the database may treat different values as equal, as a clause; else empty."""
    exact: str = ""
    """Statement that makes the column compare exactly, if one is known."""
    affinity: Affinity | None = None
    """SQLite only: it stores any value in any column, but converts some."""


@dataclass(frozen=True)
class UniqueIndex:
    """Unique index of a table, or its primary key."""

    name: str
    columns: frozenset[str]
    is_plain: bool = True
    """True if on whole columns and all rows, and not deferred: usable for an upsert."""
    equates: str = ""
    """As `Column.equates`, for a collation of the index itself."""


@dataclass(frozen=True)
class Shape:
    """Columns and unique indices of a table."""

    columns: tuple[Column, ...]
    indices: tuple[UniqueIndex, ...]
    is_strict: bool = True
    """False for SQLite."""
    hits_any_index: bool = False
    """MariaDB: an upsert changes any row that has one of its values in any unique index."""

    @property
    def unique(self) -> tuple[frozenset[str], ...]:
        """Column sets of unique indices that an upsert can use."""
        return tuple(index.columns for index in self.indices if index.is_plain)

    def misfit(self, rows: Mapping[str, pa.DataType], mode: str, key: Sequence[str]) -> str | None:
        """Returns what does not fit, as a sentence; None if everything fits."""
        known = {column.name: column for column in self.columns}
        used = {n: t for n, t in rows.items() if mode != "delete" or n in key}
        if missing := [name for name in key if name not in rows]:
            return f"the rows have no column {', '.join(missing)}; they have {', '.join(rows)}"
        if missing := [name for name in used if name not in known]:
            return f"the table has no column {', '.join(missing)}; it has {', '.join(known)}"
        if mode != "delete":
            empty = [c.name for c in self.columns if c.needs_value and c.name not in used]
            if empty:
                return f"the table needs a value for {', '.join(empty)}, and the rows have none"
            computed = [name for name in used if known[name].is_generated]
            if computed:
                return f"the database computes {', '.join(computed)}, and the rows have it"
        for name, kind in used.items():
            if not fits(kind, known[name]):
                why = _why_not(kind, known[name])
                return f"the column {name} is {known[name].shown}, and the rows have {kind}{why}"
        return self._key_misfit(used, mode, key) if key else None

    def _key_misfit(
        self, rows: Mapping[str, pa.DataType], mode: str, key: Sequence[str]
    ) -> str | None:
        """Checks that the database compares keys as Spark does: an epoch has one row per key. The
        table must not merge two of them, nor change a row with another key."""
        for column in self.columns:
            if column.name not in key:
                continue
            why, cure = column.equates, column.exact
            if not why and column.kind in _OWN_EQUALITY and column.affinity is None:
                why = f"the database does not compare {column.shown} exactly"
            if why:
                says = f": {cure}" if cure else ""
                return (
                    f"the key has the column {column.name}, and {why}: rows with different keys "
                    f"would change one row of the table. A column that compares exactly can be "
                    f"the key{says}"
                )
        if mode != "upsert":
            return None
        mine = [one for one in self.indices if one.columns == frozenset(key) and one.is_plain]
        if not mine:
            return f"no unique index of the table is on exactly {', '.join(key)}"
        for index in mine:
            if index.equates:
                return (
                    f"{index.equates} in the unique index {index.name}: rows with different keys "
                    "would change one row of the table"
                )
        automatic = {c.name for c in self.columns if c.is_automatic and c.name not in rows}
        others = [
            one
            for one in self.indices
            # A row that matches all columns of the key matches the row of the key.
            if not (one.is_plain and one.columns >= frozenset(key)) and not one.columns & automatic
        ]
        if self.hits_any_index and others:
            names = ", ".join(one.name for one in others)
            return (
                f"besides the key there is the unique index {names}: where a row has its values, "
                "this database changes that row, whatever its key is. Drop the index, make it one "
                "that is not unique, or make its columns the key"
            )
        return None


def fits(rows: pa.DataType, column: Column) -> bool:
    """True if the database stores every value unchanged, or refuses it. `refused_values` predicts
    refused values as far as possible."""
    kind, size = column.kind, column.size
    if pa.types.is_null(rows):
        return True
    if has_duration(rows):
        return False
    if column.affinity is not None:
        return keeps(column.affinity, rows)
    if pa.types.is_nested(rows):
        return kind in ("text", "json") and not column.is_padded
    if pa.types.is_boolean(rows):
        return kind == "boolean"
    if pa.types.is_integer(rows):
        if kind == "integer":
            return size is None or rows.bit_width <= size
        digits = {8: 3, 16: 5, 32: 10, 64: 19}[rows.bit_width]
        return kind == "decimal" and (size is None or size >= digits)
    if pa.types.is_floating(rows):
        if kind == "float":
            return (size is None or rows.bit_width <= size) and column.scale is None
        return kind == "decimal" and size is None
    if pa.types.is_decimal(rows):
        whole = rows.precision - rows.scale
        enough = size is None or (size >= whole and (column.scale or 0) >= rows.scale)
        return kind == "decimal" and enough
    if pa.types.is_binary(rows) or pa.types.is_large_binary(rows):
        return kind == "binary"
    if pa.types.is_date(rows):
        return kind == "date"
    if pa.types.is_timestamp(rows):
        return kind == "timestamp" and (column.scale is None or _digits(rows) <= column.scale)
    return kind in ("text", "json", "uuid", "enum", "parsed", "other")


def has_duration(kind: pa.DataType) -> bool:
    """Whether values of the type have an interval in them, which no driver and no JSON takes."""
    return any(map(pa.types.is_duration, types_in(kind)))


def _digits(times: pa.TimestampType) -> int:
    """Fractional-second digits of an Arrow timestamp unit (at most 6)."""
    return {"s": 0, "ms": 3}.get(times.unit, 6)


def _why_not(rows: pa.DataType, column: Column) -> str:
    """Explanation of a misfit that the two types do not show."""
    if column.affinity is not None:
        return f": SQLite would change values ({column.affinity.value})"
    if pa.types.is_timestamp(rows) and column.kind == "timestamp":
        better = column.shown.partition("(")[0]
        return f": fractions of a second would be rounded away; {better}(6) keeps them"
    if pa.types.is_floating(rows) and column.kind == "float" and column.scale is not None:
        return f": it rounds to {column.scale} digits; double keeps them"
    if pa.types.is_nested(rows) and column.kind in ("uuid", "enum", "parsed", "other"):
        return ", which are written as JSON; a column of JSON or text takes that"
    return ""
