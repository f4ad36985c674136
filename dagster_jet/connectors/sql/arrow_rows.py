"""Columns of a table for Spark: types, expressions that select them, and rows as Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.sql.column_fit import Column
from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, is_postgres, sqlalchemy
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from sqlalchemy import Connection, TableClause

Row = tuple[Any, ...]
_DIGITS_MAX = 38
_UNFIT = (ValueError, TypeError, ArithmeticError)
"""Errors of values that an Arrow type cannot hold."""
_SIMPLE: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "integer": ("bigint", pa.int64()),
    "float": ("double", pa.float64()),
    "binary": ("binary", pa.binary()),
    "date": ("date", pa.date32()),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC")),
}


def spark_type(column: Column) -> tuple[str, pa.DataType]:
    """(DDL, Arrow type). Types unknown to Spark become text."""
    if column.is_bytes:
        return _SIMPLE["binary"]
    if column.kind == "integer" and column.is_unsigned and column.size == 64:
        return "decimal(20,0)", pa.decimal128(20, 0)
    if column.kind == "decimal" and column.size is not None:
        scale = column.scale or 0
        if column.size + scale <= _DIGITS_MAX:
            digits = column.size + scale
            return f"decimal({digits},{scale})", pa.decimal128(digits, scale)
    return _SIMPLE.get(column.kind, ("string", pa.string()))


def selected(
    connection: Connection, place: SqlPlace, columns: Sequence[Column]
) -> tuple[TableClause, list[Any]]:
    """(table, expressions to select). Values that become text are converted by the database, which
    has a form of its own for each type; a driver's objects have lost it. MariaDB writes
    six digits of a float, and all of a double."""
    alchemy, on_sqlite = sqlalchemy(), connection.dialect.name == "sqlite"
    table = place.clause(*(column.name for column in columns))

    def expression(column: Column) -> Any:
        own = table.c[column.name]
        if column.kind == "float" and column.size == 32 and is_mysql(connection):
            # SQLAlchemy leaves a cast to double out.
            return (own * alchemy.literal_column("1e0")).label(column.name)
        if on_sqlite or column.kind == "text" or spark_type(column)[0] != "string":
            return own
        # PostgreSQL's cast adds a mask to an inet that its own form lacks.
        is_inet = column.shown == "inet" and is_postgres(connection)
        text = alchemy.func.abbrev(own) if is_inet else alchemy.cast(own, alchemy.Text)
        return text.label(column.name)

    return table, [expression(column) for column in columns]


def arrow_table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    place: SqlPlace,
    job: str | None = None,
    stage: str | None = None,
) -> pa.Table:
    """Returns the rows, whose values have the order of `columns`.

    Raises:
        SourceError: Spark's type cannot hold a value; names column and value.
    """
    kinds = {column.name: spark_type(column)[1] for column in columns}
    arrays = {}
    for at, (name, kind) in enumerate(kinds.items()):
        values = [row[at] for row in rows]
        try:
            arrays[name] = pa.array([_value(value, kind) for value in values], kind)
        except _UNFIT:
            raise SourceError(
                f"the column {name} of the table {place.table!r} has the value "
                f"{_unfit(values, kind)!r:.200}, which Spark's type {kind} cannot hold.",
                job=job,
                stage=stage,
                cure="Correct the value in the table, and start again.",
            ) from None
    return pa.table(arrays)


def _unfit(values: Sequence[Any], kind: pa.DataType) -> Any:
    """The first value that the type cannot hold."""
    for value in values:
        try:
            pa.array([_value(value, kind)], kind)
        except _UNFIT:
            return value
    return None


def _value(value: Any, kind: pa.DataType) -> Any:
    """Value as Arrow takes it; times without a zone are UTC. Raises one of `_UNFIT`."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        at = value if isinstance(value, datetime) else datetime.fromisoformat(value)  # SQLite's
        return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    if pa.types.is_string(kind) and not isinstance(value, str):
        if isinstance(value, int | float):
            return str(value)  # SQLite keeps any value in any column
        raise TypeError
    if pa.types.is_date(kind) and isinstance(value, str):
        return date.fromisoformat(value)
    if pa.types.is_decimal(kind) and isinstance(value, float):
        return Decimal(str(value))  # SQLite has no decimals
    if pa.types.is_boolean(kind):  # MariaDB has 0 and 1, and takes other numbers
        if value not in (0, 1):
            raise ValueError
        return bool(value)
    return value
