"""Maps PostgreSQL's types to Spark's, and parses their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

_SIMPLE: Mapping[str, tuple[str, pa.DataType]] = {
    "bool": ("boolean", pa.bool_()),
    "int2": ("smallint", pa.int16()),
    "int4": ("int", pa.int32()),
    "int8": ("bigint", pa.int64()),
    "float4": ("float", pa.float32()),
    "float8": ("double", pa.float64()),
    "bytea": ("binary", pa.binary()),
    "date": ("date", pa.date32()),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    "timestamptz": ("timestamp", pa.timestamp("us", "UTC")),
}
_DIGITS_MAX = 38


def spark_type(name: str, modifier: int) -> tuple[str, pa.DataType]:
    """(DDL, Arrow type) of a type by its name and modifier in `pg_attribute`.

    Types unknown to Spark become text: json, uuid, arrays, numbers without a precision.
    """
    if name == "numeric" and modifier > 4:
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if precision <= _DIGITS_MAX and scale <= precision:
            return f"decimal({precision},{scale})", pa.decimal128(precision, scale)
    return _SIMPLE.get(name, ("string", pa.string()))


def reads(kind: pa.DataType) -> Callable[[str], Any]:
    """Returns a parser of texts; times without a zone are UTC.

    The parser raises ValueError for a value that Spark's type cannot represent, such as an infinite
    date, and for a text of another type, which the column had at that time.
    """
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_binary(kind):
        return _binary
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_timestamp(kind):
        return _timestamp
    return str


def _boolean(text: str) -> bool:
    if text not in ("t", "f"):
        raise ValueError(f"{text} is no boolean")
    return text == "t"


def _binary(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("these are no bytes")
    return bytes.fromhex(text[2:])


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(f"{text} is no decimal number")
    return value


def _timestamp(text: str) -> datetime:
    """Parses `2026-01-02 03:04:05.678+00`, in UTC."""
    bare = text.removesuffix("+00")
    whole, _, fraction = bare.partition(".")
    at = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc)
    return at.replace(microsecond=int(fraction.ljust(6, "0"))) if fraction else at
