"""Rows of one group become one row: a single hash aggregation, whatever the partials are.

What Arrow can merge (sums, extremes) it merges there. For the rest the same pass lists each
group's row numbers, and the partials' own functions work on whole columns with those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.processors.partials.partial import Groups, Merger, one_array

_ROW = "__row"
_NAN = "__nan"
_NAN_WINS_IF = {"max": "any", "min": "all"}
"""Arrow's extremes overlook NaN; for Spark, who made the partials, it is the greatest number. So it
is a group's greatest value if any value is NaN, and its smallest if all are."""
_KEEP_NULL = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


def merge_groups(
    table: pa.Table,
    group: Sequence[str],
    mergers: Sequence[tuple[str, Merger]],
    *,
    merged_before: bool = True,
) -> pa.Table:
    """One row per distinct `group`: those columns, then the merged ones, types unchanged.

    Groups come in no particular order. Null is a group of its own.

    Args:
        merged_before: the values are partials already: a group of one row stays as it is. Not so
            for values lifted from raw rows.
    """
    names = [*group, *(name for name, _ in mergers)]
    table = table.select(names)
    if table.num_rows == 0 and merged_before:
        return table
    by_arrow = [(name, how) for name, how in mergers if isinstance(how, str)]
    with_nan = {
        name: _NAN_WINS_IF[how]
        for name, how in by_arrow
        if how in _NAN_WINS_IF and _has_nan(table.column(name))
    }
    by_rows = len(by_arrow) < len(mergers)
    source = table.select([*group, *(name for name, _ in by_arrow)])
    aggregations = [(name, how, _KEEP_NULL) for name, how in by_arrow]
    for name, condition in with_nan.items():
        is_nan = pc.is_nan(table.column(name)).fill_null(condition == "all")
        source = source.append_column(name + _NAN, is_nan)
        aggregations.append((name + _NAN, condition, _KEEP_NULL))
    if by_rows:
        source = source.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        aggregations.append((_ROW, "list", None))
    merged = source.group_by(list(group), use_threads=False).aggregate(aggregations)
    if merged.num_rows == table.num_rows and merged_before:
        return table
    groups = _groups(merged.column(f"{_ROW}_list")) if by_rows else None
    arrays = [merged.column(name) for name in group]
    types = [table.schema.field(name).type for name in group]
    for name, how in mergers:
        if isinstance(how, str):
            column = merged.column(f"{name}_{how}")
            if name in with_nan:
                wins = merged.column(f"{name}{_NAN}_{with_nan[name]}")
                nan = pa.scalar(float("nan"), column.type)
                column = pc.if_else(pc.and_(wins, column.is_valid()), nan, column)
            column = column.cast(table.schema.field(name).type)
        else:
            assert groups is not None
            column = how(one_array(table.column(name)), groups)
        arrays.append(column)
        types.append(column.type)
    fields = [
        table.schema.field(name).with_type(kind) for name, kind in zip(names, types, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _has_nan(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(column.type):
        return False
    return bool(pc.any(pc.is_nan(column)).as_py())


def _groups(row_lists: pa.ChunkedArray) -> Groups:
    lists = one_array(row_lists)
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return Groups(lists.flatten().to_numpy(zero_copy_only=False), starts)


def rows_where(table: pa.Table, wanted: np.ndarray) -> pa.Table:
    """The wanted rows; costs nothing if that is all of them."""
    return table if wanted.all() else table.filter(pa.array(wanted))
