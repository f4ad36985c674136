"""The order of values inside groups, as Spark's: NaN is greater than any number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def order_in_groups(
    numbers: np.ndarray, columns: Sequence[pa.Array], *, descending: bool = False
) -> np.ndarray:
    """Positions sorted by group number, then by `columns` (which hold no nulls).

    Nested columns cannot be compared in Arrow and are passed over: what is equal in the others
    keeps an arbitrary order.
    """
    direction = "descending" if descending else "ascending"
    keys = [("group", "ascending")]
    arrays: dict[str, pa.Array] = {"group": pa.array(numbers)}
    for place, column in enumerate(columns):
        if pa.types.is_nested(column.type):
            continue
        if pa.types.is_floating(column.type):
            # Arrow puts NaN last in either direction.
            arrays[f"nan{place}"] = pc.is_nan(column)
            keys.append((f"nan{place}", direction))
        arrays[f"value{place}"] = column
        keys.append((f"value{place}", direction))
    order: np.ndarray = pc.sort_indices(pa.table(arrays), sort_keys=keys).to_numpy()
    return order
