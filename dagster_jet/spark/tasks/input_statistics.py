"""Input statistics of a stage directly downstream of `with_timestamps`, reported in its acks.

Elsewhere Spark observes event time (`event_time.py`), row by row outside of its generated code,
which can double the time of an aggregation. A stage's input has all the data: every row, or groups
with the number of their rows and their newest event. Groups of a partitioned source contain rows of
one partition each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.aggregates.aggregation import ROW_COUNT
from dagster_jet.operators.operator import TIME_COLUMN
from dagster_jet.snapshot.manifest import Arrived

TIMED_COLUMN = "__timed"
"""bigint, in a group: number of its rows with event time."""
TOP_COLUMN = "__top"
"""bigint, in a group: its newest event time in ms; null if it has none."""
READ_FROM_COLUMN = "__read_from"
"""int, in a group: index of its rows' partition of the source, or -1."""
_COLUMNS = (pa.field(TIMED_COLUMN, pa.int64()), pa.field(TOP_COLUMN, pa.int64()))


class Statistics(Enum):
    """Columns after those that an aggregating operator takes."""

    NONE = ()
    OF_GROUPS = _COLUMNS
    OF_PARTITIONS = (*_COLUMNS, pa.field(READ_FROM_COLUMN, pa.int32()))
    """Each group has rows of one partition of the source."""


@dataclass(frozen=True)
class InputRef:
    """One input of a stateful stage."""

    stage: str
    ordinal: int


def count_arrived(table: pa.Table) -> Arrived:
    """Statistics of one input: rows, or groups with columns of `Statistics`."""
    if TOP_COLUMN not in table.schema.names:
        times = table.column(TIME_COLUMN)
        return Arrived(table.num_rows, table.num_rows - times.null_count, pc.max(times).as_py())
    rows, timed = (pc.sum(table.column(name)).as_py() or 0 for name in (ROW_COUNT, TIMED_COLUMN))
    top_ms = pc.max(table.column(TOP_COLUMN)).as_py()
    if READ_FROM_COLUMN not in table.schema.names:
        return Arrived(rows, timed, top_ms)
    newest = pa.TableGroupBy(table, READ_FROM_COLUMN).aggregate([(TOP_COLUMN, "max")])
    pairs = zip(*(column.to_pylist() for column in newest.itercolumns()), strict=True)
    return Arrived(rows, timed, top_ms, tuple(pair for pair in pairs if pair[1] is not None))


def total_of(parts: Iterable[Arrived]) -> Arrived:
    """Sums the statistics of all tasks."""
    every = list(parts)
    tops = [part.top_event_ms for part in every if part.top_event_ms is not None]
    by_partition: dict[int, int] = {}
    for partition, top_ms in (pair for part in every for pair in part.partition_tops_ms):
        by_partition[partition] = max(top_ms, by_partition.get(partition, top_ms))
    return Arrived(
        sum(part.rows for part in every),
        sum(part.rows_with_time for part in every),
        max(tops, default=None),
        tuple(by_partition.items()),
    )
