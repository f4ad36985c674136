"""The tumbling window as engine/spark/tasks.py still drives it; goes when that drives `Operator`.

Its successor is `SlidingWindows` in window.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.processors.aggregation import ROW_COUNT
from dagster_jet.processors.window_results import TIMESTAMP
from dagster_jet.snapshot.chunks import PARTITION_COLUMN

WINDOW_END_MS = "__window_end"


@dataclass(frozen=True)
class Output:
    """One result column: how it is finished from partial columns, and its Arrow type."""

    name: str
    function: str
    partials: tuple[str, ...]


@dataclass(frozen=True)
class WindowAggregate:
    """The operator. Frozen and small: it travels to the tasks.

    State and input schema: `__partition` int32, the key columns, `__window_end` int64 (ms),
    the partial columns, `__rows` int64 (input rows behind the partials).
    """

    keys: tuple[str, ...]
    window_size_ms: int
    partials: tuple[tuple[str, str], ...]
    """(column, Arrow merge function)."""
    outputs: tuple[Output, ...]

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """One row per (key, window). Input: at least one table, all of one schema."""
        table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
        if table.num_rows == 0:
            return table
        group = [PARTITION_COLUMN, *self.keys, WINDOW_END_MS]
        keep_null = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
        columns = [*self.partials, (ROW_COUNT, "sum")]
        merged = table.group_by(group, use_threads=False).aggregate(
            [(column, function, keep_null) for column, function in columns]
        )
        arrays = [merged.column(name) for name in group]
        arrays += [merged.column(f"{column}_{function}") for column, function in columns]
        names = [*group, *(column for column, _ in columns)]
        return pa.Table.from_arrays(arrays, names).select(table.column_names).cast(table.schema)

    def split_late(self, table: pa.Table, closed_end_ms: int | None) -> tuple[pa.Table, int]:
        """Drops rows of windows that were emitted already; returns the rest and how many fell."""
        if closed_end_ms is None or table.num_rows == 0:
            return table, 0
        open_ = pc.greater(table.column(WINDOW_END_MS), closed_end_ms)
        kept = table.filter(open_)
        if kept.num_rows == table.num_rows:
            return table, 0
        total = pc.sum(table.column(ROW_COUNT)).as_py() or 0
        left = pc.sum(kept.column(ROW_COUNT)).as_py() or 0
        return kept, total - left

    def split_closed(self, table: pa.Table, closed_end_ms: int) -> tuple[pa.Table, pa.Table]:
        """(rows of windows with end <= `closed_end_ms`, rows of windows still open)."""
        closed = pc.less_equal(table.column(WINDOW_END_MS), closed_end_ms)
        return table.filter(closed), table.filter(pc.invert(closed))

    def finish(self, merged: pa.Table, schema: pa.Schema) -> pa.Table:
        """Results of closed windows: keys, window_start, window_end, aggregates, as `schema`."""
        ends_ms = merged.column(WINDOW_END_MS)
        starts_ms = pc.subtract(ends_ms, self.window_size_ms)
        columns = [merged.column(key) for key in self.keys]
        columns += [_timestamp(starts_ms), _timestamp(ends_ms)]
        columns += [self._finish_one(merged, output) for output in self.outputs]
        return pa.Table.from_arrays(
            [c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )

    def _finish_one(self, merged: pa.Table, output: Output) -> pa.ChunkedArray:
        columns = [merged.column(name) for name in output.partials]
        if output.function == "mean":
            total, count = columns
            counted = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
            return pc.divide(total.cast(pa.float64()), counted.cast(pa.float64()))
        if output.function == "count":
            return pc.fill_null(columns[0], 0)
        return columns[0]


def _timestamp(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)
