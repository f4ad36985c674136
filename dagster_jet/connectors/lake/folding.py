"""Changes of several epochs, folded to one per key: what a MERGE applies.

A change puts a row, or removes the row of a key. The last change of a key counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.change_columns import OLD, OP, table_columns

IS_GONE = "__gone"
"""Column of folded changes: the row of the key is removed."""
_NUMBER = "__number"


@dataclass(frozen=True)
class Folded:
    """Changes with one row per key, and `IS_GONE`."""

    rows: pa.Table
    begins_empty: bool = False
    """Whether all rows of the table are removed before: the source's table was truncated."""


def folded_rows(epochs: Iterable[pa.Table], key: Sequence[str]) -> Folded:
    """Folds rows of upserts.

    Args:
        epochs: rows of each file, in the order of the artifacts.
    """
    rows = pa.concat_tables(epochs, promote_options="permissive")
    gone = pa.array([False]).take(pa.array([0] * rows.num_rows, pa.int64()))
    return Folded(_last(rows.append_column(IS_GONE, gone), _numbers(rows, 1, 0), key))


def folded_changes(epochs: Iterable[pa.Table], key: Sequence[str]) -> Folded:
    """Folds change rows (`change_columns`), each file in the order of its changes.

    An update removes the row of the old key, and puts the new row.
    """
    changes = pa.concat_tables(epochs, promote_options="permissive")
    rows = changes.select(table_columns(changes.schema).names)
    op = changes.column(OP)
    removes = pc.is_in(op, pa.array(["update", "delete"]))
    puts = pc.is_in(op, pa.array(["insert", "update"]))
    old = [pc.struct_field(changes.column(OLD), name) for name in key]
    gone_rows = pa.table(
        [
            old[list(key).index(name)] if name in key else pa.nulls(rows.num_rows, field.type)
            for name, field in zip(rows.schema.names, rows.schema, strict=True)
        ],
        rows.schema,
    )
    every = pa.concat_tables(
        [
            _marked(gone_rows, True, _numbers(changes, 2, 0)).filter(removes),
            _marked(rows, False, _numbers(changes, 2, 1)).filter(puts),
        ]
    )
    truncated = pc.indices_nonzero(pc.equal(op, "truncate"))
    if len(truncated):
        every = every.filter(pc.greater(every.column(_NUMBER), 2 * truncated[-1].as_py()))
    numbers = every.column(_NUMBER)
    return Folded(_last(every.drop_columns([_NUMBER]), numbers, key), bool(len(truncated)))


def _marked(rows: pa.Table, is_gone: bool, numbers: pa.Array) -> pa.Table:
    flags = pa.array([is_gone]).take(pa.array([0] * rows.num_rows, pa.int64()))
    return rows.append_column(IS_GONE, flags).append_column(_NUMBER, numbers)


def _numbers(rows: pa.Table, step: int, first: int) -> pa.Array:
    return pa.array(range(first, first + step * rows.num_rows, step), pa.int64())


def _last(rows: pa.Table, numbers: pa.Array, key: Sequence[str]) -> pa.Table:
    """Returns the row with the highest number of each key."""
    place = "__place"
    keyed = rows.select(list(key)).append_column(_NUMBER, numbers)
    order = pc.sort_indices(keyed, [(_NUMBER, "ascending")])
    keyed = keyed.append_column(place, pa.array(range(rows.num_rows), pa.int64())).take(order)
    last = keyed.group_by(list(key), use_threads=False).aggregate([(place, "last")])
    return rows.take(last.column(f"{place}_last"))
