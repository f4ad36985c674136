"""Statistics of a data file, by which readers skip it: rows, nulls, smallest and largest values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_TEXT_MAX = 32
"""Longest text that is written whole."""
_LAST_CHARACTER = "\U0010ffff"


@dataclass
class Statistics:
    """Collects the statistics of the batches of one file."""

    columns: Collection[str]
    """The columns with statistics; nested ones have none."""
    rows: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    endless: set[str] = field(default_factory=set)
    """Columns with a NaN or an infinity."""
    _bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if name not in self.columns or pa.types.is_nested(values.type):
                continue
            self.types[name] = values.type
            self.nulls[name] = self.nulls.get(name, 0) + values.null_count
            if values.null_count == len(values) or _is_bytes(values.type):
                continue
            if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
                self.endless.add(name)  # neither JSON nor all readers have a place for these
                continue
            found = pc.min_max(as_plain(values))
            least, most = found["min"].as_py(), found["max"].as_py()
            known = self._bounds.get(name, (least, most))
            self._bounds[name] = min(known[0], least), max(known[1], most)

    def bound(self, name: str) -> tuple[Any, Any] | None:
        """Returns a column's smallest and largest value; None if it has no value, is not finite,
        or has bytes. Times are microseconds and dates days since 1970."""
        return None if name in self.endless else self._bounds.get(name)


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type))


def as_plain(values: pa.Array) -> pa.Array:
    """Returns times as microseconds and dates as days since 1970: Python's may be too small."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


def short_text(least: str, most: str) -> tuple[str, str] | None:
    """Returns bounds of texts that are not longer than `_TEXT_MAX`, or one character more; None if
    no such text is above the largest."""
    if most[_TEXT_MAX : _TEXT_MAX + 1] == _LAST_CHARACTER:
        return None
    more = _LAST_CHARACTER if len(most) > _TEXT_MAX else ""
    return least[:_TEXT_MAX], most[:_TEXT_MAX] + more
