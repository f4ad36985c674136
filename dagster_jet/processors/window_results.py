"""What results of windows have in common, whatever kind of window they come from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dagster_jet.processors.aggregation import Aggregation

WINDOW_START = "window_start"
WINDOW_END = "window_end"
IS_EARLY = "is_early"
"""bool, only where a stage asked for early results: the window was still open."""
TIMESTAMP = pa.timestamp("us", tz="UTC")


def window_result_schema(
    aggregation: Aggregation, keys: Sequence[str], state: pa.Schema, *, early: bool
) -> pa.Schema:
    """Keys, window_start, window_end, aggregates, and is_early where asked for."""
    fields = [state.field(key) for key in keys]
    fields += [pa.field(WINDOW_START, TIMESTAMP), pa.field(WINDOW_END, TIMESTAMP)]
    fields += aggregation.result_fields(state)
    if early:
        fields.append(pa.field(IS_EARLY, pa.bool_()))
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
) -> pa.Table:
    """`merged`, one row per key and window, as results in `schema`."""
    columns = [merged.column(key) for key in keys]
    columns += [_timestamps(starts_ms), _timestamps(ends_ms), *aggregation.finish(merged)]
    if IS_EARLY in schema.names[len(columns) :]:
        columns.append(pa.repeat(pa.scalar(early), merged.num_rows))
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _timestamps(milliseconds: np.ndarray) -> pa.Array:
    return pa.array(milliseconds * 1000, TIMESTAMP)
