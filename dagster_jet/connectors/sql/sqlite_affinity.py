"""SQLite's column types are only preferences: determines which values a column converts.

https://www.sqlite.org/datatype3.html, "Determination Of Column Affinity".
"""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

_DOUBLE_DIGITS = 15


class Affinity(Enum):
    """Conversion that a column applies to values."""

    INTEGER = "a text that looks like a number becomes one"
    TEXT = "a number becomes a text"
    NONE = "nothing changes"
    REAL = "a whole number becomes a double, a text that looks like a number too"
    NUMERIC = "a text that looks like a number becomes one; TEXT is the type for texts"


def affinity(declared: str) -> Affinity:
    """Affinity of a column by its declared type."""
    words = declared.upper()
    if "INT" in words:
        return Affinity.INTEGER
    if any(word in words for word in ("CHAR", "CLOB", "TEXT")):
        return Affinity.TEXT
    if "BLOB" in words or not words:
        return Affinity.NONE
    if any(word in words for word in ("REAL", "FLOA", "DOUB")):
        return Affinity.REAL
    return Affinity.NUMERIC


def keeps(column: Affinity, rows: pa.DataType) -> bool:
    """True if the column stores every value unchanged, in the form in which we write it.

    Decimals, times and JSON are written as texts; no time and no JSON looks like a number.
    """
    is_text, is_number = column is Affinity.TEXT, column in _NUMBERS
    if pa.types.is_string(rows) or pa.types.is_large_string(rows):
        return not is_number
    if pa.types.is_decimal(rows):
        return not is_number or rows.precision <= _DOUBLE_DIGITS
    if pa.types.is_boolean(rows) or pa.types.is_floating(rows):
        return not is_text
    if pa.types.is_integer(rows):
        return not is_text and (column is not Affinity.REAL or rows.bit_width <= 32)
    return True


_NUMBERS = (Affinity.INTEGER, Affinity.REAL, Affinity.NUMERIC)
