"""Merges state in parts, so that memory depends on the size of a part, not of the state.

A part has all rows of some keys: of a range of hashes if the state has a key hash, else of a range
of partitions. An operator's `merge` works key by key, so the merged parts equal the merged whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.operator import HASH_COLUMN, PARTITION_COLUMN
from dagster_jet.snapshot.storage.chunks import ascends, filter_partitions, slice_between

ROWS_AT_ONCE = 1 << 19
"""Approximate number of rows merged at once: grouping takes some 100 bytes per row."""

_SAMPLE_EVERY = 32
_WORTH_IT = 0.8
"""Merging that keeps more than this share of the rows costs more than it saves."""

Merge = Callable[[Sequence[pa.Table]], pa.Table]
LiveRows = Callable[[Sequence[pa.Table]], list[pa.Table]]


def merged_parts(
    tables: Sequence[pa.Table],
    merge: Merge,
    live_rows: LiveRows,
    *,
    by_partition: bool = False,
    rows_at_once: int | None = None,
) -> Iterator[pa.Table]:
    """Merge the live rows of `tables`, in one part or more.

    Args:
        tables: at least one, of one schema; memory-mapped ones stay on disk.
        live_rows: filters out expired rows.
        by_partition: a part has all rows of some partitions, even if there is a key hash.
        rows_at_once: default `ROWS_AT_ONCE`.

    Returns:
        Parts by ascending hash if the state has a key hash; else by ascending partition.
    """
    count = -(-sum(table.num_rows for table in tables) // (rows_at_once or ROWS_AT_ONCE))
    if count <= 1:
        yield merge(live_rows(tables))
        return
    has_hash = HASH_COLUMN in tables[0].schema.names and not by_partition
    column = HASH_COLUMN if has_hash else PARTITION_COLUMN
    edges = _edges(tables, column, count)
    for low, high in zip(edges, [*edges[1:], None], strict=True):
        within = [_between(table, column, low, high) for table in tables]
        yield merge(live_rows(within))


def is_worth_merging(tables: Sequence[pa.Table], merge: Merge) -> bool:
    """Whether these tables, each merged in itself, share many keys; judged by a sample of
    partitions. Unmerged tables are merged by their reader."""
    filled = [table for table in tables if table.num_rows]
    if len(filled) < 2:
        return False
    known = np.flatnonzero(np.bincount(filled[0].column(PARTITION_COLUMN).to_numpy()))
    sample = known[:: min(_SAMPLE_EVERY, max(1, len(known) // 2))].tolist()
    few = [filter_partitions(table, sample) for table in filled]
    return bool(merge(few).num_rows <= _WORTH_IT * sum(table.num_rows for table in few))


def _edges(tables: Sequence[pa.Table], column: str, count: int) -> list[int]:
    """Return the lower edges of parts of about equal size, from a sample of every table."""
    samples = []
    for table in tables:
        if table.num_rows:
            places = np.linspace(0, table.num_rows - 1, min(table.num_rows, 64 * count))
            taken = table.select([column]).take(pa.array(np.unique(places.astype(np.int64))))
            values = taken.column(0).to_numpy()
            share = table.num_rows / len(values)
            samples.append((values, np.full(len(values), share)))
    values = np.concatenate([values for values, _ in samples])
    order = np.argsort(values, kind="stable")
    weights = np.cumsum(np.concatenate([weights for _, weights in samples])[order])
    wanted = weights[-1] * np.arange(1, count) / count
    inner = np.unique(values[order][np.searchsorted(weights, wanted)])
    lowest = int(np.iinfo(values.dtype).min)
    return [lowest, *(int(edge) for edge in inner if edge > lowest)]


def _between(table: pa.Table, column: str, low: int, high: int | None) -> pa.Table:
    """Return the rows whose `column` is at least `low` and below `high`, batch by batch."""
    kept = []
    for batch in table.to_batches():
        values = batch.column(batch.schema.get_field_index(column))
        if ascends(values.to_numpy()):  # true for batches of runs sorted by this column
            kept.append(slice_between(batch, values.to_numpy(), low, high))
            continue
        wanted = pc.greater_equal(values, pa.scalar(low, values.type))
        if high is not None:
            wanted = pc.and_(wanted, pc.less(values, pa.scalar(high, values.type)))
        kept.append(batch.filter(wanted))
    return pa.Table.from_batches(kept, table.schema)
