"""The newest event of every partition of a source, by a fixed number of aggregates.

Spark has no aggregate grouped by a value of the row. A tuple sketch is one: it keeps a number per
key, and is exact up to `PARTITIONS_MAX` keys. It keeps hashes of the keys, so a second sketch with
the same keys maps hashes to partitions.
"""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F

from dagster_jet.contract import SOURCE_PARTITION_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column

_LG_KEYS = 20
PARTITIONS_MAX = 1 << _LG_KEYS
"""Partitions of one source: more than any cluster has."""
_EXACT_MAX = 2**53
"""Largest exact integer of a double, the type of the numbers."""
_LONG_MIN = -(2**63)
_ENTRY = np.dtype([("hash", "<u8"), ("value", "<f8"), ("mode", "u1")])
_WORD = 8


def newest_per_partition(time_ms: Column) -> tuple[Column, Column]:
    """Two aggregates of text without commas, for `read_tops`. Rows without a time do not count."""
    partition = F.when(time_ms.isNotNull(), F.col(SOURCE_PARTITION_COLUMN))
    return _greatest(partition, time_ms).alias("tops"), _greatest(partition, partition).alias("of")


def read_tops(tops: str | None, of: str | None) -> dict[int, int]:
    """Returns the newest event time in ms by partition index, for partitions with events.

    Times beyond 2^53 ms are rounded down, by at most 1,024 ms, so that no watermark is ahead.
    """
    indexes = _by_hash(of)
    return {round(indexes[key]): _whole_ms(top) for key, top in _by_hash(tops).items()}


def _greatest(key: Column, number: Column) -> Column:
    sketch = F.tuple_sketch_agg_double(key, number.cast("double"), _LG_KEYS, "max")
    return F.base64(sketch)


def _by_hash(text: str | None) -> dict[int, float]:
    """Entries of a compact sketch. Its first byte is the number of words before them."""
    data = base64.b64decode(text or "")
    if not data:
        return {}
    size, rest = divmod(len(data) - _WORD * data[0], _ENTRY.itemsize)
    assert not rest, "a sketch is of entries"
    entries = np.frombuffer(data, _ENTRY, count=size, offset=_WORD * data[0])
    return dict(zip(entries["hash"].tolist(), entries["value"].tolist(), strict=True))


def _whole_ms(value: float) -> int:
    if abs(value) <= _EXACT_MAX:
        return int(value)
    return max(int(math.nextafter(value, -math.inf)), _LONG_MIN)
