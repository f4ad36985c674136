"""Statistics of a data file, by which readers skip it: rows, nulls, smallest and largest values.

Some readers take a missing bound for one that no row meets, and skip the file. So a file has the
bounds of all its columns, or, if one of them cannot be written exactly, its number of rows only.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TEXT_MAX = 32
"""Longest text that is written whole."""
_LAST_CHARACTER = "\U0010ffff"
_DIGITS_MAX = 15
"""Digits of a number that readers with floating point keep."""
_MS_US = 1000


@dataclass
class Statistics:
    """Collects the statistics of the batches of one file."""

    columns: Collection[str]
    """The columns with statistics; nested ones have none."""
    rows: int = 0
    _nulls: dict[str, int] = field(default_factory=dict)
    _bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    _types: dict[str, pa.DataType] = field(default_factory=dict)
    _is_exact: bool = True

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if name not in self.columns or pa.types.is_nested(values.type):
                continue
            self._types[name] = values.type
            self._nulls[name] = self._nulls.get(name, 0) + values.null_count
            if values.null_count == len(values) or _is_bytes(values.type):
                continue
            if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
                self._is_exact = False  # neither JSON nor all readers have a place for these
                continue
            found = pc.min_max(_as_plain(values))
            least, most = found["min"].as_py(), found["max"].as_py()
            known = self._bounds.get(name, (least, most))
            self._bounds[name] = min(known[0], least), max(known[1], most)

    def as_json(self) -> str:
        """Returns the statistics as the log keeps them."""
        shown = {name: _shown(self._types[name], *both) for name, both in self._bounds.items()}
        least = {name: texts[0] for name, texts in shown.items() if texts is not None}
        most = {name: texts[1] for name, texts in shown.items() if texts is not None}
        if not self._is_exact or len(least) < len(shown):
            return _object({"numRecords": str(self.rows)})
        nulls = {name: str(count) for name, count in self._nulls.items()}
        parts = {"minValues": least, "maxValues": most, "nullCount": nulls}
        texts = {name: _object(part) for name, part in parts.items()}
        return _object({"numRecords": str(self.rows), **texts})


def _object(texts: dict[str, str]) -> str:
    """Returns a JSON object of values that are JSON already: decimals are written digit by
    digit."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items()) + "}"


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def _as_plain(values: pa.Array) -> pa.Array:
    """Returns times as microseconds and dates as days since 1970: Python's may be too small."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


def _shown(type: pa.DataType, least: Any, most: Any) -> tuple[str, str] | None:
    """Returns the bounds as JSON; None if one cannot be written."""
    if isinstance(least, Decimal):
        return None if type.precision > _DIGITS_MAX else (f"{least:f}", f"{most:f}")
    if isinstance(least, str):
        if most[_TEXT_MAX : _TEXT_MAX + 1] == _LAST_CHARACTER:
            return None
        more = _LAST_CHARACTER if len(most) > _TEXT_MAX else ""
        return json.dumps(least[:_TEXT_MAX]), json.dumps(most[:_TEXT_MAX] + more)
    try:
        if pa.types.is_date32(type):
            return _day(least), _day(most)
        if pa.types.is_timestamp(type):
            has_zone = type.tz is not None
            return _time(least // _MS_US, has_zone), _time(-(-most // _MS_US), has_zone)
    except OverflowError:
        return None
    return json.dumps(least), json.dumps(most)


def _day(days: int) -> str:
    return f'"{(date(1970, 1, 1) + timedelta(days=days)).isoformat()}"'


def _time(ms: int, has_zone: bool) -> str:
    at = datetime(1970, 1, 1) + timedelta(milliseconds=ms)
    return f'"{at.isoformat(timespec="milliseconds")}{"Z" if has_zone else ""}"'
