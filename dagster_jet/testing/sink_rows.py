"""Rows that `check_sink` writes, and the forms in which a place may keep their values."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("number", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
        pa.field("price", pa.decimal128(10, 2)),
    ]
)
"""Columns of every row. `id` is unique and never null; it is the key of a sink with a key."""


def row_of(number: int) -> Row:
    return {
        "id": number,
        "text": f"row {number} \u00e4\u20ac\n\"',",
        "number": number / 8,
        "flag": number % 2 == 0,
        "at": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc),
        "day": date(2026, 1, 2),
        "raw": b"\x00\xff",
        "price": Decimal("12.34"),
    }


EXTREMES: Sequence[Row] = (
    {
        "number": -1e300,
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc),
        "day": date(1001, 1, 1),
        "raw": b"",
        "price": Decimal("-99999999.99"),
    },
    {
        "number": 0.1,
        "at": datetime(2200, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc),
        "day": date(9999, 12, 31),
        "raw": b"text",
        "price": Decimal("0.01"),
    },
)
"""Values that every place accepts and that a faulty sink changes."""


def compare(expected: Row, seen: Row) -> None:
    for name in SCHEMA.names:
        if name in seen and not _is_same(expected[name], seen[name]):
            raise AssertionError(
                f"the {name} of row {expected['id']} is {seen[name]!r:.200} and not "
                f"{expected[name]!r:.200}"
            )


def _is_same(expected: Any, seen: Any) -> bool:
    """Whether it is this value, or the form of it in a place without such a type."""
    if expected is None or seen is None:
        return expected is seen
    match expected:
        case bool():
            return seen in (True, False) and bool(seen) == expected
        case float():
            return float(seen) == expected
        case Decimal():
            return Decimal(str(seen)) == expected
        case bytes():
            found = base64.b64decode(seen) if isinstance(seen, str) else bytes(seen)
            return found == expected
        case datetime():
            # Python 3.10 does not parse Z.
            text = seen.replace("Z", "+00:00") if isinstance(seen, str) else ""
            at = datetime.fromisoformat(text) if text else seen
            return bool(at.replace(tzinfo=at.tzinfo or timezone.utc) == expected)
        case date():
            return bool((date.fromisoformat(seen) if isinstance(seen, str) else seen) == expected)
    return bool(seen == expected)
