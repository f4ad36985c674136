"""Late rows: events before the watermark are dropped and counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import BadRowError
from dagster_jet.operators.operator import TIME_COLUMN

LateUntil = Callable[[int, int | None], int]
"""Maps the watermark of earlier epochs, and the time up to which they have expired state, to the
newest moment (ms) that is late."""


def before_watermark(before_ms: int, expired_until_ms: int | None) -> int:
    """`LateUntil` for event times."""
    return before_ms - 1


def event_times(table: pa.Table) -> np.ndarray:
    """Returns the event times of the rows, in ms.

    Raises:
        BadRowError: a row has none, so neither its lateness nor its expiry is defined.
    """
    column = table.column(TIME_COLUMN)
    if column.null_count:
        raise BadRowError(
            f"{column.null_count} of {table.num_rows} rows have no event time.",
            cure="Filter rows without an event time, or give them one, before the stateful stage.",
        )
    times: np.ndarray = column.to_numpy()
    return times


def micros_of(rows: pa.Table, time: str | None) -> np.ndarray:
    """Returns the microseconds by which each event is later than its event time in ms: 0 to 999.

    Args:
        time: the stream's column with the event time. Only a timestamp has microseconds.
    """
    if time is None or not pa.types.is_timestamp(rows.schema.field(time).type):
        return np.zeros(rows.num_rows, np.int64)
    micros: np.ndarray = rows.column(time).cast(pa.int64()).fill_null(0).to_numpy() % 1_000
    return micros


def drop_late(table: pa.Table, before_ms: int | None) -> tuple[pa.Table, int]:
    """Rows with time >= the watermark, and the number of rows before it (strictly)."""
    times = event_times(table)
    if before_ms is None or table.num_rows == 0 or times.min() >= before_ms:
        return table, 0
    kept = table.filter(pa.array(times >= before_ms))
    return kept, table.num_rows - kept.num_rows


def leave_out_late(table: pa.Table, before_ms: int | None) -> tuple[pa.Table, int]:
    """As `drop_late`, before an operator that takes late rows. A row without a time is not late."""
    if before_ms is None:
        return table, 0
    late = pc.fill_null(pc.less(table.column(TIME_COLUMN), before_ms), fill_value=False)
    kept = table.filter(pc.invert(late))
    return kept, table.num_rows - kept.num_rows
