"""Partition of a key: one function with the same result in Python and in Spark's JVM.

``key_hash`` is Spark SQL's built-in ``xxhash64(c1, c2, ...)``, so a Spark plan can compute
``pmod(xxhash64(key), partition_count)`` without a Python UDF and get the same partition. Spark's
``hash()`` (murmur3) is not used because it differs from the published murmur3 in the last one to
three bytes of a string: no library outside Spark computes it. ``xxhash64`` is the standard XXH64.
Python's ``hash`` is not usable: it differs between processes.

Rules per column (https://github.com/apache/spark, ``HashExpression``, ``XxHash64Function``): the
hash of a column is the seed of the next, the first seed is 42, and NULL leaves it unchanged.
"""

from __future__ import annotations

import math
import struct
from datetime import date, datetime, timedelta, timezone
from typing import TypeAlias, cast

import xxhash

DEFAULT_PARTITION_COUNT = 271
"""A prime, so that keys with a regular step spread evenly; Hazelcast's default."""

KeyValue: TypeAlias = "bool | int | float | str | bytes | date | datetime | None"
"""Allowed parts of a key. A ``datetime`` without a zone means UTC (Spark's TIMESTAMP_NTZ)."""

SEED = 42
_UNSIGNED_64 = 2**64
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_LONG = struct.Struct("<q")
_INT = struct.Struct("<i")
_DOUBLE = struct.Struct("<d")
_NAN = _LONG.pack(0x7FF8000000000000)  # Java's canonical NaN; Python keeps sign and payload bits


def key_hash(*values: KeyValue) -> int:
    """Hash a key of one or more columns like Spark's ``xxhash64``.

    Args:
        *values: the columns. A Python ``int`` is hashed as a BIGINT: a Spark column of type INT,
            SMALLINT or TINYINT must be cast to BIGINT first, or its hash differs.

    Returns:
        A signed 64-bit integer, like Spark's LONG.

    Raises:
        TypeError: the type of a value has no agreed hash.
        OverflowError: an integer does not fit into 64 bits.
        ValueError: a text cannot be encoded as UTF-8.
    """
    seed = SEED
    for value in values:
        if value is not None:
            seed = xxhash.xxh64_intdigest(hashed_bytes(value), seed)
    return seed - _UNSIGNED_64 if seed > _LONG_MAX else seed


def partition_id(*values: KeyValue, partition_count: int = DEFAULT_PARTITION_COUNT) -> int:
    """Return the partition of a key, in ``range(partition_count)``; Spark's ``pmod``."""
    return key_hash(*values) % partition_count


def partition_of_key(key: object, partition_count: int) -> int:
    """Like `partition_id`; a tuple is a key of several columns.

    Raises:
        TypeError: the type has no hash shared with Spark.
    """
    columns = key if isinstance(key, tuple) else (key,)
    return partition_id(*cast("tuple[KeyValue, ...]", columns), partition_count=partition_count)


def hashed_bytes(value: KeyValue) -> bytes:
    """Return the bytes of a value that are hashed."""
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, bool):  # before int: a bool is an int in Python, four bytes in Spark
        return _INT.pack(int(value))
    if isinstance(value, int):
        if not _LONG_MIN <= value <= _LONG_MAX:
            raise OverflowError(f"the key {value} does not fit a 64-bit integer")
        return _LONG.pack(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return _NAN
        return _DOUBLE.pack(value + 0.0)  # -0.0 + 0.0 is 0.0
    if isinstance(value, datetime):  # before date: a datetime is a date in Python
        aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
        return _LONG.pack((aware - _EPOCH) // _MICROSECOND)
    if isinstance(value, date):
        return _INT.pack(value.toordinal() - _EPOCH_ORDINAL)
    raise TypeError(f"a key of type {type(value).__name__} has no hash shared with Spark")
