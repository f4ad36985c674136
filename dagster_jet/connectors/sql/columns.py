"""Columns of a table and columns of rows: do they fit?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.connectors.sql.sqlite_affinity import Affinity, keeps

_OWN_EQUALITY = frozenset({"json", "parsed", "other"})
"""Kinds whose values are written as texts, and compared as something else."""


@dataclass(frozen=True)
class Column:
    """Of a table, as the database describes it."""

    name: str
    kind: str
    """boolean, integer, float, decimal, text, binary, date, timestamp, json, uuid, enum,
    parsed (of texts: an array) or other."""
    shown: str
    """Its type, for people."""
    needs_value: bool = False
    """Not null, and no default."""
    size: int | None = None
    """Of integers: bits. Of floats: 32 or 64. Of decimals: digits before the point."""
    scale: int | None = None
    """Digits behind the point: of decimals, of floats that round to them, of a time's seconds."""
    takes_null: bool = True
    is_generated: bool = False
    """The database computes it, and takes no value for it."""
    is_automatic: bool = False
    """Without a value it gets one that no other row has: a number, or a null."""
    is_unsigned: bool = False
    is_padded: bool = False
    """`char(n)`, `binary(n)`: blanks or zeros at the end come and go."""
    characters: int | None = None
    """The most that a text has."""
    bytes: int | None = None
    """The most that a text in UTF-8, or a binary value, has."""
    equates: str = ""
    """Why values that differ may be equal for the database, as a part of a sentence; else empty."""
    exact: str = ""
    """The statement that makes it compare exactly, where one is known."""
    affinity: Affinity | None = None
    """SQLite's, which keeps any value in any column, but changes some."""


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index of a table, or its primary key."""

    name: str
    columns: frozenset[str]
    is_plain: bool = True
    """On whole columns and all rows, and checked at once: an upsert can go by it."""
    equates: str = ""
    """As `Column.equates`, of a collation that the index has for itself."""


@dataclass(frozen=True)
class Shape:
    """What a table takes."""

    columns: tuple[Column, ...]
    indices: tuple[UniqueIndex, ...]
    is_strict: bool = True
    """False: SQLite's."""
    hits_any_index: bool = False
    """An upsert changes whichever row has one of its values in any unique index: MariaDB's."""

    @property
    def unique(self) -> tuple[frozenset[str], ...]:
        """Columns of which no two rows have the same values."""
        return tuple(index.columns for index in self.indices if index.is_plain)

    def misfit(self, rows: Mapping[str, pa.DataType], mode: str, key: Sequence[str]) -> str | None:
        """What does not fit, as a sentence; None: all does."""
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
        """One row of an epoch for each key, as Spark compares keys: the table must not see fewer,
        and must see none of its own in another row's place."""
        for column in self.columns:
            if column.name not in key:
                continue
            why, cure = column.equates, column.exact
            if not why and column.kind in _OWN_EQUALITY and column.affinity is None:
                why = f"the database compares {column.shown} in a way of its own"
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
            # Whoever hits one with all columns of the key hits the row of the key.
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
    """Whether the database keeps every value of the rows as it is, or refuses it.

    What it refuses, value by value, `refused_values` knows as far as it can be known."""
    kind, size = column.kind, column.size
    if pa.types.is_null(rows):
        return True
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


def _digits(times: pa.TimestampType) -> int:
    """Of their seconds' fractions; Spark has microseconds."""
    return {"s": 0, "ms": 3}.get(times.unit, 6)


def _why_not(rows: pa.DataType, column: Column) -> str:
    """More words on a pair that does not fit, where its types alone do not say it."""
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
