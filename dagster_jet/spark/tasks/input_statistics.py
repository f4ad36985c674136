"""Input statistics of a stage directly downstream of `with_timestamps`, reported in its acks.

Elsewhere Spark observes event time (`event_time.py`), row by row outside of its generated code,
which can double the time of an aggregation. A stage's input has all the data: every row, or groups
with the number of their rows and their newest event.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.aggregates.aggregation import ROW_COUNT
from dagster_jet.operators.operator import TIME_COLUMN
from dagster_jet.snapshot.manifest import Arrived

TIMED_COLUMN = "__timed"
"""bigint, in a group: number of its rows with event time."""
TOP_COLUMN = "__top"
"""bigint, in a group: its newest event time in ms; null if it has none."""
STATISTICS_COLUMNS = (pa.field(TIMED_COLUMN, pa.int64()), pa.field(TOP_COLUMN, pa.int64()))
"""Columns after those that an aggregating operator takes."""


def count_arrived(table: pa.Table) -> Arrived:
    """Statistics of one input: rows, or groups with `STATISTICS_COLUMNS`."""
    if TOP_COLUMN not in table.schema.names:
        times = table.column(TIME_COLUMN)
        return Arrived(table.num_rows, table.num_rows - times.null_count, pc.max(times).as_py())
    rows, timed = (pc.sum(table.column(name)).as_py() or 0 for name in (ROW_COUNT, TIMED_COLUMN))
    return Arrived(rows, timed, pc.max(table.column(TOP_COLUMN)).as_py())


def total_of(parts: Iterable[Arrived]) -> Arrived:
    """Sums the statistics of all shards."""
    every = list(parts)
    tops = [part.top_event_ms for part in every if part.top_event_ms is not None]
    return Arrived(
        sum(part.rows for part in every),
        sum(part.rows_with_time for part in every),
        max(tops, default=None),
    )
