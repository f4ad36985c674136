"""Where a row belongs: the columns that every keyed row starts with, in input and in state."""

from __future__ import annotations

import pyarrow as pa

from dagster_jet.processors.operator import HASH_COLUMN, PARTITION_COLUMN, TIME_COLUMN

ADDRESS = (
    pa.field(PARTITION_COLUMN, pa.int32()),
    pa.field(HASH_COLUMN, pa.int64()),
    pa.field(TIME_COLUMN, pa.int64()),
)
"""Partition, hash of the key, event time in ms. None of them is ever null."""

READABLE_TIME = pa.timestamp("ms", tz="UTC")


def readable_time(table: pa.Table) -> pa.ChunkedArray:
    """`TIME_COLUMN` for people."""
    return table.column(TIME_COLUMN).cast(READABLE_TIME)
