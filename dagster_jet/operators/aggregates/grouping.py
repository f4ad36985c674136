"""Merges the rows of each group into one, in a single hash aggregation for all partials.

Arrow merges sums and extremes. For other partials the same pass lists the row numbers of each
group, and the partials' own functions work on whole columns with these lists.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import ResultError
from dagster_jet.operators.partials.partial import Groups, Merger, one_array

_ROW = "__row"
_NAN = "__nan"
_NAN_WINS_IF = {"max": "any", "min": "all"}
"""Arrow's extremes ignore NaN; in Spark, which made the partials, it is the greatest number. So a
group's maximum is NaN if any value is, and its minimum if all values are."""
_KEEP_NULL = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


def merge_groups(
    table: pa.Table,
    group: Sequence[str],
    mergers: Sequence[tuple[str, Merger]],
    *,
    merged_before: bool = True,
) -> pa.Table:
    """One row per distinct `group`: its columns, then the merged ones, with types unchanged.

    Groups come in no particular order. Null is a group of its own. Sums of integers and decimals
    are exact.

    Args:
        merged_before: the values are partials already: a group of one row stays unchanged. False
            for values lifted from raw rows.

    Raises:
        ResultError: a sum does not fit the type of its column.
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
    for name, function in by_arrow:
        if function == "sum" and _may_overflow(source.column(name)):
            source = _widened(source, name)
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
            column = _in_type(column, name, table.schema.field(name).type)
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


def _may_overflow(column: pa.ChunkedArray) -> bool:
    """Whether a sum of these values could overflow their type. Errs on the side of True."""
    kind = column.type
    if pa.types.is_int64(kind):
        limit = 2.0**63
    elif pa.types.is_decimal128(kind):
        limit = 10.0 ** (kind.precision - kind.scale)
    else:
        return False
    least, greatest = (value.as_py() for value in pc.min_max(column).values())
    if least is None:
        return False
    return max(-float(least), float(greatest)) * len(column) > 0.99 * limit


def _widened(table: pa.Table, name: str) -> pa.Table:
    """Casts that column to a type in which no sum overflows: Arrow's sums wrap silently."""
    place = table.schema.get_field_index(name)
    column = table.column(place)
    kind = column.type
    wide = pa.decimal128(38) if pa.types.is_integer(kind) else pa.decimal256(76, kind.scale)
    return table.set_column(place, name, column.cast(wide))


def _in_type(column: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise ResultError(
            f"{name.removeprefix('__')} of a group does not fit {kind}.",
            cure="Cast the column to decimal or double before summing it.",
        ) from error


def _groups(row_lists: pa.ChunkedArray) -> Groups:
    lists = one_array(row_lists)
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return Groups(lists.flatten().to_numpy(zero_copy_only=False), starts)


def rows_where(table: pa.Table, wanted: np.ndarray) -> pa.Table:
    """The wanted rows; free of cost if all are wanted."""
    return table if wanted.all() else table.filter(pa.array(wanted))
