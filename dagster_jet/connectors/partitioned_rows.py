"""Divides rows by the values of their partition columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""Value of null in names of folders."""
FOLDER_BYTES_MAX = 255
"""Longest name of a folder in most file systems."""
Values = tuple[str | None, ...]
"""Texts of the partition columns' values; None: null."""


def divided(batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yields the rows of each partition, in their order and without its columns."""
    if not by:
        yield (), batch
        return
    if batch.num_rows == 0:
        return
    rows = batch.drop_columns(list(by))
    columns = [pc.dictionary_encode(batch.column(name), null_encoding="encode") for name in by]
    texts = [_texts(column.dictionary) for column in columns]
    partition = np.zeros(batch.num_rows, np.int64)
    for column, values in zip(columns, texts, strict=True):
        # Renumbered, so that many columns do not overflow.
        together = partition * len(values) + np.asarray(column.indices)
        partition = np.unique(together, return_inverse=True)[1]
    order = np.argsort(partition, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(partition[order])) + 1):
        first = int(mine[0])
        found = zip(columns, texts, strict=True)
        own = tuple(values[column.indices[first].as_py()] for column, values in found)
        yield own, rows if len(mine) == batch.num_rows else rows.take(pa.array(mine))


def in_pieces(rows: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in pieces of about this many bytes in memory, at least one row."""
    each = max(1, rows.num_rows * limit // max(1, rows.nbytes))
    for first in range(0, rows.num_rows, each):
        yield rows.slice(first, each)


def _texts(values: pa.Array) -> list[str | None]:
    if pa.types.is_boolean(values.type):
        values = pc.if_else(values, "true", "false")
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts
