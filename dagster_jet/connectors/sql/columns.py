"""Columns of a table and columns of rows: do they fit?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

_BITS = {"SMALLINT": 16, "INTEGER": 32, "INT": 32, "BIGINT": 64, "TINYINT": 8, "MEDIUMINT": 24}


@dataclass(frozen=True)
class Column:
    """Of a table, as the database describes it."""

    name: str
    kind: str
    """boolean, integer, float, decimal, text, binary, date, timestamp, json, parsed (of texts: an
    enum, a UUID, an array) or other."""
    shown: str
    """Its type, for people."""
    needs_value: bool = False
    """Not null, and no default."""
    size: int | None = None
    """Of integers: bits. Of floats: 32 or 64. Of decimals: digits before the point."""
    scale: int | None = None
    """Digits behind the point: of decimals, of floats that round to them, of a time's seconds."""


@dataclass(frozen=True)
class Shape:
    """What a table takes."""

    columns: tuple[Column, ...]
    unique: tuple[frozenset[str], ...]
    is_strict: bool = True
    """SQLite keeps any value in any column."""

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
        if mode == "upsert" and frozenset(key) not in self.unique:
            return f"no unique index of the table is on exactly {', '.join(key)}"
        for name, kind in used.items():
            if self.is_strict and not fits(kind, known[name]):
                why = _why_not(kind, known[name])
                return f"the column {name} is {known[name].shown}, and the rows have {kind}{why}"
        return None


def fits(rows: pa.DataType, column: Column) -> bool:
    """Whether the database keeps every value of the rows as it is, or refuses it.

    What it refuses, value by value, ends the job in the commit: a text that is too long or that it
    cannot parse, a negative number where there is no sign (Spark has no such type)."""
    kind, size = column.kind, column.size
    if pa.types.is_null(rows):
        return True
    if kind == "other":
        return not pa.types.is_nested(rows)
    if pa.types.is_nested(rows):
        return kind in ("text", "json")
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
    return kind in ("text", "json", "parsed")


def _digits(times: pa.TimestampType) -> int:
    """Of their seconds' fractions; Spark has microseconds."""
    return {"s": 0, "ms": 3}.get(times.unit, 6)


def _why_not(rows: pa.DataType, column: Column) -> str:
    """More words on a pair that does not fit, where its types alone do not say it."""
    if pa.types.is_timestamp(rows) and column.kind == "timestamp":
        better = column.shown.partition("(")[0]
        return f": fractions of a second would be rounded away; {better}(6) keeps them"
    if pa.types.is_floating(rows) and column.kind == "float" and column.scale is not None:
        return f": it rounds to {column.scale} digits; double keeps them"
    if pa.types.is_nested(rows) and column.kind in ("parsed", "other"):
        return ", which are written as JSON; a column of JSON or text takes that"
    return ""


def shape_of(connection: Connection, place: SqlPlace) -> Shape | None:
    """What the table takes; None: there is no such table."""
    alchemy = sqlalchemy()
    looked = alchemy.inspect(connection)
    try:
        found = looked.get_columns(place.name, schema=place.schema)
    except alchemy.exc.NoSuchTableError:
        return None
    if not found:
        return None
    primary = looked.get_pk_constraint(place.name, schema=place.schema)["constrained_columns"]
    unique = [primary] if primary else []
    unique += [
        one["column_names"] for one in looked.get_unique_constraints(place.name, place.schema)
    ]
    unique += [
        one["column_names"]
        for one in looked.get_indexes(place.name, place.schema)
        if one["unique"] and not one.get("dialect_options", {}).get("postgresql_where")
    ]
    return Shape(
        tuple(_column(one, connection) for one in found),
        tuple(frozenset(name for name in one if name) for one in unique),
        is_strict=connection.dialect.name != "sqlite",
    )


def _column(found: Mapping[str, Any], connection: Connection) -> Column:
    types, kind = sqlalchemy().types, found["type"]
    shown = str(kind.compile(dialect=connection.dialect)) if _has_name(kind) else "unknown"
    # An integer primary key of SQLite, an identity or a serial column fill themselves.
    fills_itself = (
        found.get("default") is not None
        or found.get("identity")
        or (found.get("autoincrement") is True or found.get("computed"))
    )
    if connection.dialect.name == "sqlite" and found.get("primary_key") and shown == "INTEGER":
        fills_itself = True
    needs_value = not found["nullable"] and not fills_itself
    name, size, scale = "other", None, None
    word = shown.partition("(")[0].upper().removesuffix(" UNSIGNED")
    if isinstance(kind, types.JSON):
        name = "json"
    elif isinstance(kind, types.Enum | types.Uuid | types.ARRAY):
        name = "parsed"
    elif isinstance(kind, types.Boolean) or (
        is_mysql(connection) and shown.startswith("TINYINT(1)")
    ):
        name = "boolean"
    elif isinstance(kind, types.Integer):
        name, size = "integer", _BITS.get(word.partition(" ")[0])
        size = size if connection.dialect.name != "sqlite" else None
    elif isinstance(kind, types.Float):
        single = {"postgresql": "REAL", "mysql": "FLOAT", "mariadb": "FLOAT"}
        name, size = "float", 32 if word == single.get(connection.dialect.name) else 64
        scale = getattr(kind, "scale", None)  # MySQL's float(7, 4)
    elif isinstance(kind, types.Numeric):
        name, scale = "decimal", kind.scale
        size = None if kind.precision is None else kind.precision - (kind.scale or 0)
    elif isinstance(kind, types.LargeBinary | types._Binary):
        name = "binary"
    elif isinstance(kind, types.DateTime):
        name, scale = "timestamp", _seconds_digits(kind, connection)
    elif isinstance(kind, types.Date):
        name = "date"
    elif isinstance(kind, types.String):
        name = "text"
    return Column(found["name"], name, shown.lower(), needs_value, size, scale)


def _seconds_digits(kind: Any, connection: Connection) -> int | None:
    if is_mysql(connection):
        return getattr(kind, "fsp", None) or 0
    return getattr(kind, "precision", None)  # PostgreSQL's; without it there are six


def _has_name(kind: Any) -> bool:
    return not isinstance(kind, sqlalchemy().types.NullType)


def created(place: SqlPlace, rows: pa.Schema, key: Sequence[str], connection: Connection) -> Any:
    """The table as it is to be created for such rows: `create table` as a statement."""
    alchemy = sqlalchemy()
    table = alchemy.Table(
        place.name,
        alchemy.MetaData(),
        *(
            alchemy.Column(one.name, _type_for(one.type, one.name in key, connection),
                           primary_key=one.name in key, autoincrement=False)
            for one in rows
        ),
        schema=place.schema,
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )  # fmt: skip
    return alchemy.schema.CreateTable(table, if_not_exists=True)


def _type_for(kind: pa.DataType, is_key: bool, connection: Connection) -> Any:
    types, on_mysql = sqlalchemy().types, is_mysql(connection)
    if pa.types.is_boolean(kind):
        return types.Boolean()
    if pa.types.is_integer(kind):
        return types.BigInteger() if kind.bit_width > 32 else types.Integer()
    if pa.types.is_floating(kind):
        return types.Double()
    if pa.types.is_decimal(kind):
        return types.Numeric(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return types.Date()
    if pa.types.is_timestamp(kind):
        if on_mysql:
            from sqlalchemy.dialects import mysql

            return mysql.DATETIME(fsp=6)
        return types.DateTime(timezone=True)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return types.LargeBinary(2**32 - 1) if on_mysql else types.LargeBinary()
    if is_key and on_mysql:
        return types.String(255)
    return types.Text(2**32 - 1) if on_mysql else types.Text()
