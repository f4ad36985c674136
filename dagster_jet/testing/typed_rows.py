"""Values of every type, for `check_source`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from dagster_jet.contract import Source

Send = Callable[[list[dict[str, Any]]], None]
Item = tuple[int, str | None]
"""Row of the suite: its id, which is unique, and its text."""

TYPES: Mapping[str, Sequence[Any]] = {
    "boolean": (True, False),
    "byte": (-(2**7), 2**7 - 1),
    "short": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "float": (0.5, -3.0),
    "double": (0.1, -1e300, math.inf, math.nan),
    "decimal(38,9)": (Decimal("12345678901234567890123456789.123456789"), Decimal("-0.000000001")),
    "string": ("é ☃ 🜚", 'a "b", c\\d'),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (
        datetime(1969, 12, 31, 23, 59, 59, 999_999, timezone.utc),
        datetime(2200, 1, 1, 0, 0, 0, 1, timezone.utc),
    ),
    "binary": (b"\x00\xff", b"text"),
    "array<long>": ([1, None, -3], []),
    "map<string,long>": ({"a": 1, "b": None}, {}),
    "struct<a:long,b:string>": ({"a": 1, "b": "x"}, {"a": None, "b": None}),
}
"""Values that `Typed` sends, by type."""


@dataclass(frozen=True)
class Typed:
    """A separate place, for rows with a column of every type that a source can carry."""

    make_source: Callable[[str], Source]
    """Returns the source's definition for a schema: `id long`, and the columns `v0`, `v1`, ... of
    `types`. The place is empty at the first call."""
    send: Send
    """Writes rows with these columns, as Python values; all but the id may be None."""
    types: Sequence[str] = tuple(TYPES)
    """Keys of `TYPES`."""

    @property
    def schema(self) -> str:
        return ", ".join(["id long", *(f"v{n} {kind}" for n, kind in enumerate(self.types))])

    def rows(self) -> list[dict[str, Any]]:
        """Rows with every value of every type, and nulls."""
        count = max(len(TYPES[kind]) for kind in self.types)
        rows = [
            {f"v{n}": TYPES[kind][i % len(TYPES[kind])] for n, kind in enumerate(self.types)}
            for i in range(count)
        ]
        nulls = dict.fromkeys(rows[0])
        return [{"id": i, **row} for i, row in enumerate([*rows, nulls])]


def shown(row: Mapping[str, Any]) -> Item:
    """A row with its values as text, because NaN is not equal to itself."""
    return row["id"], repr([_plain(value) for name, value in row.items() if name != "id"])


def _plain(value: Any) -> Any:
    match value:
        case bytearray():
            return bytes(value)
        case datetime():  # Spark's have no zone and are in local time
            return value.astimezone(timezone.utc)
    return value
