"""Finds the changes of rows: by all columns of the key, in columnar steps."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


class KeyNumbers:
    """Numbers of changes by their keys, which are distinct and not null.

    The columns of a key are combined one by one: each step numbers the distinct values so far.
    """

    def __init__(self, changes: pa.Table, key: Sequence[str]) -> None:
        self._steps: list[tuple[str, pa.Array, pa.Array | None]] = []
        """Column, its distinct values, and the distinct combinations with the columns before."""
        numbers: pa.Array | None = None
        for name in key:
            column = _whole(changes.column(name))
            values = column.unique()
            found, combined = pc.index_in(column, values), None
            if numbers is not None:
                found = _combined(numbers, found, len(values))
                combined = found.unique()
                found = pc.index_in(found, combined)
            self._steps.append((name, values, combined))
            numbers = found
        self._order = numbers

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Returns for each row the number of the change with its key; null if there is none."""
        numbers: pa.Array | None = None
        for name, values, combined in self._steps:
            found = pc.index_in(rows.column(name), values)
            if numbers is not None:
                found = pc.index_in(_combined(numbers, found, len(values)), combined)
            numbers = found
        return pc.index_in(numbers, self._order)


def _combined(numbers: pa.Array, found: pa.Array, count: int) -> pa.Array:
    return pc.add(pc.multiply(numbers.cast(pa.int64()), count), found.cast(pa.int64()))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
