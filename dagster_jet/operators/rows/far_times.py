"""Dates and times that Python does not have: before the year 1 or after 9999."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def has_far(column: pa.Array) -> bool:
    """Returns whether it is a column of dates or times, and Python does not have one of them."""
    if not (pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type)):
        return False
    try:
        pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        return True
    return False


def far_reasons(name: str, column: pa.Array) -> dict[int, str]:
    """Returns, by number, the reason to refuse each row that `far_rows` returns."""
    return dict.fromkeys(far_rows(column), f"{name} is before the year 1 or after 9999")


def far_rows(column: pa.Array) -> list[int]:
    """Returns the numbers of rows of a column of dates or times whose value Python does not
    have; none of any other column."""
    if not has_far(column):
        return []
    return [n for n, value in enumerate(python_values(column)) if isinstance(value, str)]


def python_values(column: pa.Array) -> list[Any]:
    """Values like `to_pylist`, but with texts for dates and times, also inside of lists, maps and
    structs, that Python does not have."""
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        found = [_value(one) for one in column]
    return found


def python_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """A dict per row, with values of `python_values`."""
    columns = map(python_values, rows.columns)
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def with_sign(text: str) -> str:
    """Text of a date or time by numpy, with the sign and the digits of the year that Spark writes
    (ISO 8601): at least four digits, and a plus before more."""
    if text.startswith("-"):
        year, rest = text[1:].split("-", 1)
        return f"-{year.zfill(4)}-{rest}"
    return f"+{text}" if text.index("-") > 4 else text


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        pass
    match scalar:
        case pa.MapScalar():
            return [tuple(map(_value, pair.values())) for pair in scalar.values]
        case pa.StructScalar():
            return {name: _value(one) for name, one in scalar.items()}
        case pa.TimestampScalar():
            unit: Any = scalar.type.unit
            zone = "" if scalar.type.tz is None else "Z"
            return with_sign(str(np.datetime64(scalar.value, unit))) + zone
        case pa.Date32Scalar():
            return with_sign(str(np.datetime64(scalar.value, "D")))
    return [_value(one) for one in scalar.values]
