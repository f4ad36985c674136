"""Rows of a database as an Arrow table, and types of columns for Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.sql.column_fit import Column

Row = tuple[Any, ...]
_DIGITS_MAX = 38
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
    if column.kind == "decimal" and column.size is not None:
        scale = column.scale or 0
        if column.size + scale <= _DIGITS_MAX:
            digits = column.size + scale
            return f"decimal({digits},{scale})", pa.decimal128(digits, scale)
    return _SIMPLE.get(column.kind, ("string", pa.string()))


def arrow_table(columns: Mapping[str, pa.DataType], rows: Sequence[Row]) -> pa.Table:
    """Returns the rows, whose values have the order of `columns`."""
    return pa.table(
        {
            name: pa.array([_value(row[at], kind) for row in rows], kind)
            for at, (name, kind) in enumerate(columns.items())
        }
    )


def _value(value: Any, kind: pa.DataType) -> Any:
    """Value as Arrow takes it; times without a zone are UTC."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        value = datetime.fromisoformat(value) if isinstance(value, str) else value  # SQLite's
        return value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    if pa.types.is_string(kind) and not isinstance(value, str):
        if isinstance(value, datetime | date):
            return value.isoformat()
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    if pa.types.is_date(kind) and isinstance(value, str):
        return date.fromisoformat(value)
    if pa.types.is_decimal(kind) and isinstance(value, float):
        return Decimal(str(value))  # SQLite has no decimals
    if pa.types.is_boolean(kind):
        return bool(value)  # MariaDB has 0 and 1
    return value
