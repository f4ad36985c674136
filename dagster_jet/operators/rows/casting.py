"""Casts columns to a schema, but for those that have its type already.

Arrow refuses to cast a slice of structs to the same type, if the type has a field without nulls and
the array has nulls there outside of the slice, as rows of other stages have that came in one table.
"""

from __future__ import annotations

import pyarrow as pa


def cast_column(column: pa.ChunkedArray | pa.Array, to: pa.DataType) -> pa.ChunkedArray | pa.Array:
    return column if column.type == to else column.cast(to)


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """As `rows.cast(schema)`.

    Raises:
        ValueError: the columns have other names, or one without nulls has some.
    """
    if rows.column_names != schema.names:
        raise ValueError(f"the columns are {rows.column_names}, expected {schema.names}")
    for column, field in zip(rows.columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"the column {field.name!r} has nulls")
    columns = [cast_column(c, f.type) for c, f in zip(rows.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)
