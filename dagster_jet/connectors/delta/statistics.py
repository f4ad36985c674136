"""Statistics of a data file, by which readers skip it: smallest and largest values, nulls, rows.

A value that is not written exactly is left out: a reader then does not skip by it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS_MAX = 32
"""Number of leading columns with statistics, as Spark's writer has it."""
_TEXT_MAX = 32
"""Longest text in statistics."""
_MS_US = 1000


@dataclass
class Statistics:
    """Collects the statistics of the batches of one file."""

    rows: int = 0
    _nulls: dict[str, int] = field(default_factory=dict)
    _least: dict[str, Any] = field(default_factory=dict)
    _most: dict[str, Any] = field(default_factory=dict)
    _types: dict[str, pa.DataType] = field(default_factory=dict)
    _unordered: set[str] = field(default_factory=set)
    """Columns with a NaN, which readers order in different ways."""

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        columns = zip(batch.schema.names, batch.columns, strict=True)
        plain = [(name, values) for name, values in columns if not pa.types.is_nested(values.type)]
        for name, values in plain[:COLUMNS_MAX]:
            self._types[name] = values.type
            self._nulls[name] = self._nulls.get(name, 0) + values.null_count
            if values.null_count == len(values) or not _is_ordered(values.type):
                continue
            if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
                self._unordered.add(name)
                continue
            bounds = pc.min_max(_as_plain(values))
            least, most = bounds["min"].as_py(), bounds["max"].as_py()
            self._least[name] = min(self._least.get(name, least), least)
            self._most[name] = max(self._most.get(name, most), most)

    def as_json(self) -> str:
        """Returns the statistics as the log keeps them."""
        found: dict[str, Any] = {"numRecords": self.rows, "minValues": {}, "maxValues": {}}
        for name in self._least.keys() - self._unordered:
            type = self._types[name]
            least = _shown(type, self._least[name], is_upper=False)
            most = _shown(type, self._most[name], is_upper=True)
            if least is not None and most is not None:
                found["minValues"][name], found["maxValues"][name] = least, most
        return json.dumps({**found, "nullCount": self._nulls}, separators=(",", ":"))


def _is_ordered(type: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_integer(type)
        or kinds.is_floating(type)
        or kinds.is_string(type)
        or kinds.is_large_string(type)
        or kinds.is_date32(type)
        or (kinds.is_timestamp(type) and type.unit == "us")
    )


def _as_plain(values: pa.Array) -> pa.Array:
    """Returns times as microseconds and dates as days since 1970: Python's may be too small."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


def _shown(type: pa.DataType, value: Any, *, is_upper: bool) -> Any:
    """Returns a bound as JSON; None if it cannot be written."""
    if isinstance(value, str):
        return value if len(value) <= _TEXT_MAX else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    try:
        if pa.types.is_date32(type):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if pa.types.is_timestamp(type):
            ms = -(-value // _MS_US) if is_upper else value // _MS_US
            at = datetime(1970, 1, 1) + timedelta(milliseconds=ms)
            zone = "" if type.tz is None else "Z"
            return f"{at.isoformat(timespec='milliseconds')}{zone}"
    except OverflowError:
        return None
    return value
