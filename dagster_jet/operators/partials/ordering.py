"""Sorting of values inside groups in Spark's order: NaN is greater than any number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def order_in_groups(
    numbers: np.ndarray, columns: Sequence[pa.Array], *, descending: bool = False
) -> np.ndarray:
    """Positions sorted by group number, then by `columns` (which hold no nulls).

    Nested columns are ignored, because Arrow cannot compare them: rows equal in the other columns
    have an arbitrary order.
    """
    direction = "descending" if descending else "ascending"
    keys = [("group", "ascending")]
    arrays: dict[str, pa.Array] = {"group": pa.array(numbers)}
    for place, column in enumerate(columns):
        if pa.types.is_nested(column.type):
            continue
        if pa.types.is_floating(column.type):
            # Arrow puts NaN last in both directions.
            arrays[f"nan{place}"] = pc.is_nan(column)
            keys.append((f"nan{place}", direction))
        arrays[f"value{place}"] = column
        keys.append((f"value{place}", direction))
    order: np.ndarray = pc.sort_indices(pa.table(arrays), sort_keys=keys).to_numpy()
    return order
