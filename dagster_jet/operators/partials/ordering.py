"""Sorting of values inside groups in Spark's order: null is less than any value, NaN is greater
than any number, structs and lists are compared field by field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def order_in_groups(
    numbers: np.ndarray, columns: Sequence[pa.Array], *, descending: bool = False
) -> np.ndarray:
    """Positions sorted by group number, then by `columns`."""
    direction = "descending" if descending else "ascending"
    arrays = [pa.array(numbers), *(key for column in columns for key in _sort_keys(column))]
    names = [str(place) for place in range(len(arrays))]
    order: np.ndarray = pc.sort_indices(
        pa.table(arrays, names),
        sort_keys=[(name, "ascending" if name == "0" else direction) for name in names],
    ).to_numpy()
    return order


def _sort_keys(column: pa.Array) -> Iterator[pa.Array]:
    """Yields columns that Arrow sorts as Spark sorts this one."""
    if column.null_count:
        yield column.is_valid()  # Arrow puts nulls last in both directions
    if pa.types.is_struct(column.type):
        for place in range(column.type.num_fields):
            yield from _sort_keys(pc.struct_field(column, [place]))
    elif pa.types.is_nested(column.type):
        yield _ranks(column)
    elif pa.types.is_floating(column.type):
        yield pc.is_nan(column)  # Arrow puts NaN last in both directions
        yield column
    elif not pa.types.is_null(column.type):
        yield column


def _ranks(lists: pa.Array) -> pa.Array:
    """Numbers that are in the order of the lists, which Arrow cannot compare."""
    keys = [_key(value) for value in lists.to_pylist()]
    rank = {key: place for place, key in enumerate(sorted(set(keys)))}
    return pa.array([rank[key] for key in keys], pa.int64())


def _key(value: Any) -> tuple[Any, ...]:
    match value:
        case None:
            return (False,)
        case list() | tuple():  # a tuple is an entry of a map
            return (True, tuple(map(_key, value)))
        case dict():
            return (True, tuple(map(_key, value.values())))
        case float():
            return (True, math.isnan(value), 0.0 if math.isnan(value) else value)
    return (True, value)
