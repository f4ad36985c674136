"""Finds rows with equal keys: exact, vectorised, by Spark's rules of equality.

The key's hash finds rows cheaply, but two keys may share a hash, and some always do: Spark's
`xxhash64` skips NULLs, so ("a", NULL) and (NULL, "a") always collide. Operators therefore compare
the keys themselves. As in Spark's GROUP BY, NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.rows.sorting import dense_codes


def key_codes(keys: Sequence[str], *tables: pa.Table) -> tuple[np.ndarray, ...]:
    """Numbers the keys of some tables together: equal keys get equal numbers.

    Args:
        keys: the key columns, of one type each in all tables; with none, all rows have one key.
        *tables: at least one.

    Returns:
        Per table an int64 array, one number from `range(number of rows of all tables)` per row.
    """
    total = sum(table.num_rows for table in tables)
    codes = np.zeros(total, np.int64)
    for place, key in enumerate(keys):
        of_column = _column_codes(key, tables)
        if place == 0:
            codes = of_column
        else:
            # Made dense after every column, so that the product never overflows.
            pairs = codes * (total + 1) + of_column
            codes = dense_codes(pairs)
    return tuple(np.split(codes, np.cumsum([table.num_rows for table in tables[:-1]])))


def null_keys(keys: Sequence[str], table: pa.Table) -> np.ndarray:
    """True where a key column is null: in a join such a key equals no key, not even itself."""
    found = np.zeros(table.num_rows, bool)
    for key in keys:
        column = table.column(key)
        if column.null_count:
            found |= column.is_null().to_numpy()
    return found


def one_zero_and_nan(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Gives equal floats the same bit pattern; other columns stay unchanged."""
    kind = column.type
    if not pa.types.is_floating(kind):
        return column
    column = pc.add(column, pa.scalar(0.0, kind))  # -0.0 + 0.0 is 0.0
    one_nan = pa.scalar(float("nan"), kind)  # NaNs differ in sign and payload
    return pc.if_else(pc.is_nan(column), one_nan, column)


def _column_codes(key: str, tables: Sequence[pa.Table]) -> np.ndarray:
    kind = tables[0].schema.field(key).type
    column = pa.chunked_array([c for t in tables for c in t.column(key).chunks], kind)
    column = one_zero_and_nan(column)
    if len(column) == 0:
        return np.empty(0, np.int64)
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries()
        return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]).astype(
            np.int64
        )
    codes: np.ndarray = encoded.indices.to_numpy().astype(np.int64)
    return codes
