"""A shard's state for the store benchmark, and a fingerprint of rows in any order.

About 100 bytes a row, random, in no order: what the merge of an operator hands to a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN

_KEY_BYTES = 16
_VALUE_BYTES = 64
ROW_BYTES = 4 + 4 + _KEY_BYTES + 8 + 8 + _VALUE_BYTES
_WIDTHS = {PARTITION_COLUMN: 4, "k": _KEY_BYTES, "window": 8, "count": 8, "value": _VALUE_BYTES}
_MODULUS = 2**64


@dataclass(frozen=True)
class Share:
    """Part of a state of `state_bytes` that one process holds: one shard, as one Spark task
    does."""

    shard: int
    shards: int
    state_bytes: int
    partition_count: int

    @property
    def rows(self) -> int:
        return max(1, self.state_bytes // self.shards // ROW_BYTES)

    @property
    def partitions(self) -> range:
        """Partitions of the shard, given as the engine gives them."""
        return range(self.shard, self.partition_count, self.shards)

    def table(self) -> pa.Table:
        """The rows; every partition has about as many as the next."""
        random, rows = np.random.default_rng(self.shard), self.rows
        partitions = random.choice(np.array(self.partitions, dtype=np.int32), rows)
        numbers = np.arange(rows, dtype=np.int64) * self.shards + self.shard
        return pa.table(
            {
                PARTITION_COLUMN: partitions,
                "k": _keys(numbers),
                "window": random.integers(0, 2**40, rows),
                "count": random.integers(0, 2**20, rows),
                "value": pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(_VALUE_BYTES),
                    rows,
                    [None, pa.py_buffer(random.bytes(rows * _VALUE_BYTES))],
                ),
            }
        )


def fingerprint(table: pa.Table | None) -> tuple[int, int]:
    """Rows, and a sum over them of a hash of all of a row's bytes: equal for equal multisets."""
    if table is None:
        return 0, 0
    weights = np.random.default_rng(271)
    hashes = np.zeros(table.num_rows, dtype=np.uint64)
    for name, width in _WIDTHS.items():
        column = table.column(name).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        data = np.frombuffer(column.buffers()[-1], dtype=np.uint8)
        data = data[column.offset * width :][: table.num_rows * width]
        words = data.view(np.uint32).reshape(table.num_rows, width // 4)
        for at in range(width // 4):
            hashes ^= hashes >> np.uint64(29)
            hashes += words[:, at]
            hashes *= np.uint64(int(weights.integers(1, 2**62)) * 2 + 1)
    hashes ^= hashes >> np.uint64(32)
    return table.num_rows, int(hashes.sum(dtype=np.uint64)) % _MODULUS


def _keys(numbers: np.ndarray) -> pa.Array:
    """Numbers as strings of `_KEY_BYTES` digits, made by columns: millions of them."""
    digits = np.empty((len(numbers), _KEY_BYTES), dtype=np.uint8)
    rest = numbers.copy()
    for at in range(_KEY_BYTES - 1, -1, -1):
        digits[:, at] = rest % 10 + ord("0")
        rest //= 10
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * _KEY_BYTES
    return pa.StringArray.from_buffers(
        len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits.tobytes())
    )
