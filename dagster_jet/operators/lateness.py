"""Late rows: events before the watermark are dropped and counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dagster_jet.errors import BadRowError
from dagster_jet.operators.operator import TIME_COLUMN


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


def drop_late(table: pa.Table, before_ms: int | None) -> tuple[pa.Table, int]:
    """Rows with time >= the watermark, and the number of rows before it (strictly)."""
    times = event_times(table)
    if before_ms is None or table.num_rows == 0 or times.min() >= before_ms:
        return table, 0
    kept = table.filter(pa.array(times >= before_ms))
    return kept, table.num_rows - kept.num_rows
