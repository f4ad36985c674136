"""Result columns shared by all kinds of windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dagster_jet.errors import BadRowError
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.rows.casting import cast_column

WINDOW_START = "window_start"
WINDOW_END = "window_end"
IS_EARLY = "is_early"
"""bool, only if the stage emits early results: the window was still open."""
CORRECTION = "correction"
"""int64, only with an allowed lateness: 0 for a window's result at its end, otherwise a number that
is greater in each later result of the window."""
TIMESTAMP = pa.timestamp("us", tz="UTC")
FARTHEST_MS = 9_200_000_000_000_000
"""Largest absolute time accepted in rows: fits `TIMESTAMP` with 700 years to spare for ends."""


def window_result_schema(
    aggregation: Aggregation,
    keys: Sequence[str],
    state: pa.Schema,
    *,
    early: bool,
    corrected: bool = False,
) -> pa.Schema:
    """Keys, window_start, window_end, aggregates, then is_early and correction where asked for."""
    fields = [state.field(key) for key in keys]
    fields += [pa.field(WINDOW_START, TIMESTAMP), pa.field(WINDOW_END, TIMESTAMP)]
    fields += aggregation.result_fields(state)
    if early:
        fields.append(pa.field(IS_EARLY, pa.bool_()))
    if corrected:
        fields.append(pa.field(CORRECTION, pa.int64()))
    return pa.schema(fields)


def window_results(
    aggregation: Aggregation,
    keys: Sequence[str],
    schema: pa.Schema,
    merged: pa.Table,
    starts_ms: np.ndarray,
    ends_ms: np.ndarray,
    *,
    early: bool = False,
    correction: int = 0,
) -> pa.Table:
    """Converts `merged`, one row per key and window, to results in `schema`."""
    columns = [merged.column(key) for key in keys]
    columns += [timestamps(starts_ms), timestamps(ends_ms), *aggregation.finish(merged)]
    constants = {IS_EARLY: pa.scalar(early), CORRECTION: pa.scalar(correction, pa.int64())}
    for name in schema.names[len(columns) :]:
        columns.append(pa.repeat(constants[name], merged.num_rows))
    arrays = [cast_column(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def timestamps(milliseconds: np.ndarray) -> pa.Array:
    """Casts to `TIMESTAMP`; the cast raises for times that `check_times` has not refused."""
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)


def check_times(milliseconds: np.ndarray) -> None:
    """Refuses arriving rows whose time does not fit `TIMESTAMP`, before a snapshot has them.

    Raises:
        BadRowError: names the first such time.
    """
    far = (milliseconds < -FARTHEST_MS) | (milliseconds > FARTHEST_MS)
    if far.any():
        raise BadRowError(
            f"an event time near {milliseconds[far][0]} ms is outside the range of timestamps.",
            cure="Event time is milliseconds since 1970: convert micro- or nanoseconds.",
        )
