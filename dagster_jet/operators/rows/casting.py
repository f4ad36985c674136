"""Casts columns to a schema, but for those that have its type already.

Arrow refuses to cast a slice of structs to the same type, if the type has a field without nulls and
the array has nulls there outside of the slice, as rows of other stages have that came in one table.
"""

from __future__ import annotations

import pyarrow as pa


def cast_column(column: pa.ChunkedArray | pa.Array, to: pa.DataType) -> pa.ChunkedArray | pa.Array:
    return column if column.type == to else column.cast(to)


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, in its types and in its order."""
    columns = [cast_column(rows.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)
