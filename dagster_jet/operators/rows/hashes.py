"""Hash of a key in Arrow columns: equal to Spark's `xxhash64` over columns of the same types.

`core/partition.py` hashes Python values, which have no widths; a column of 32-bit integers has
other hashes than one of 64 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types

from dagster_jet.core.partition import SEED, hashed_bytes

_INT = struct.Struct("<i")
_FLOAT = struct.Struct("<f")
_NAN = _INT.pack(0x7FC00000)  # Java's canonical NaN
_LONG_DIGITS = 18
"""Largest precision of a decimal that is a 64-bit integer in Spark."""


def is_hashable(kind: pa.DataType) -> bool:
    """Whether `key_hashes` takes columns of this type."""
    return any(
        test(kind)
        for test in (
            types.is_boolean,
            types.is_signed_integer,
            types.is_float32,
            types.is_float64,
            types.is_decimal128,
            types.is_string,
            types.is_large_string,
            types.is_binary,
            types.is_large_binary,
            types.is_date32,
        )
    ) or (types.is_timestamp(kind) and kind.unit == "us")


def key_hashes(columns: Sequence[pa.ChunkedArray], rows: int, *, wide: bool = False) -> np.ndarray:
    """int64 hash per row; 0 if the key has no columns.

    Args:
        wide: integers of every width are hashed as bigint and floats as double, as for the keys of
            a processor.
    """
    if not columns:
        return np.zeros(rows, np.int64)
    seeds = [SEED] * rows
    for column in columns:
        for row, value in enumerate(_bytes_of(column, wide)):
            if value is not None:  # a null does not change the hash
                seeds[row] = xxhash.xxh64_intdigest(value, seeds[row])
    return np.array(seeds, np.uint64).view(np.int64)


def _bytes_of(column: pa.ChunkedArray, wide: bool) -> Iterator[bytes | None]:
    kind = column.type
    if wide and types.is_signed_integer(kind):
        kind = pa.int64()
    elif wide and types.is_float32(kind):
        kind = pa.float64()
    if types.is_timestamp(kind) or types.is_int64(kind):
        yield from _fixed(column.cast(pa.int64()), "<i8")
    elif types.is_date32(kind) or types.is_signed_integer(kind):
        yield from _fixed(column.cast(pa.int32()), "<i4")
    elif types.is_float32(kind):
        for value in column.to_pylist():
            yield None if value is None else _float_bytes(value)
    elif types.is_decimal(kind):
        for value in column.to_pylist():
            yield None if value is None else _decimal_bytes(value, kind.precision, kind.scale)
    else:
        if types.is_string(kind) or types.is_large_string(kind):
            kind = pa.large_binary()  # Spark's strings need not be UTF-8
        for value in column.cast(kind).to_pylist():
            yield None if value is None else hashed_bytes(value)


def _fixed(column: pa.ChunkedArray, kind: str) -> Iterator[bytes | None]:
    """Values of fixed width, sliced from one buffer."""
    numbers = column.fill_null(0).to_numpy().astype(kind)
    data, width = numbers.tobytes(), numbers.itemsize
    valid = column.is_valid().to_numpy()
    for row, is_there in enumerate(valid.tolist()):
        yield data[row * width : (row + 1) * width] if is_there else None


def _float_bytes(value: float) -> bytes:
    return _NAN if math.isnan(value) else _FLOAT.pack(value + 0.0)  # -0.0 + 0.0 is 0.0


def _decimal_bytes(value: Decimal, precision: int, scale: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    # scaleb() would round to the precision of the thread's context.
    number = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    unscaled: int = -number if sign else number
    if precision <= _LONG_DIGITS:
        return unscaled.to_bytes(8, "little", signed=True)
    bits = (~unscaled if unscaled < 0 else unscaled).bit_length()  # like Java: 7 for -128
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
