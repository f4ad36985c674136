"""Casts columns to a type, as Arrow would if it knew that a null struct has no fields.

Spark writes a null into each field of a null struct. Arrow's cast and its Parquet writer look at
the fields alone, and the cast at those outside of a slice, too: they refuse these nulls in a field
that is declared without nulls. So such a field loses its validity bitmap first, if only null
structs have nulls in it.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.rows.nested_types import types_in


def cast_column(column: pa.ChunkedArray | pa.Array, to: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """As `column.cast(to)`, but a number too large for a float does not become infinite.

    Raises:
        ArrowInvalid: a value does not fit; a struct that is not null has a null in a field that
            `to` declares without nulls.
    """
    fitting = without_hidden_nulls(column, to)
    if fitting.type == to:
        return fitting
    made = fitting.cast(to)
    if pa.types.is_float32(to) and pa.types.is_float64(fitting.type):
        lost = fitting.filter(pc.and_(pc.is_inf(made), pc.is_finite(fitting)))
        if len(lost):
            raise pa.ArrowInvalid(f"{lost[0]} is too large for a float")
    return made


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


def writable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that Arrow's writers accept."""
    if not any(_has_strict_field(field.type) for field in batch.schema):
        return batch
    columns = [without_hidden_nulls(column, column.type) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def without_hidden_nulls(
    column: pa.ChunkedArray | pa.Array, to: pa.DataType
) -> pa.ChunkedArray | pa.Array:
    """The same values in the same type, without validity bitmaps for the fields of structs that
    `to` declares without nulls. A field with a null in a struct that is there keeps its bitmap."""
    if not _has_strict_field(to):
        return column
    if isinstance(column, pa.ChunkedArray):
        chunks = [without_hidden_nulls(chunk, to) for chunk in column.chunks]
        return pa.chunked_array(chunks, column.type)
    if pa.types.is_struct(to) and pa.types.is_struct(column.type):
        return _struct(column, to)
    if pa.types.is_map(to) and pa.types.is_map(column.type):
        pairs = [(column.keys, to.key_type), (column.items, to.item_type)]
        fields = [column.type.key_field, column.type.item_field]
        children = [without_hidden_nulls(child, type) for child, type in pairs]
        return _with_children(column, [pa.StructArray.from_arrays(children, fields=fields)])
    if pa.types.is_list(to) and pa.types.is_list(column.type):
        return _with_children(column, [without_hidden_nulls(column.values, to.value_type)])
    return column


@lru_cache(1000)
def _has_strict_field(type: pa.DataType) -> bool:
    """Whether a struct in the type has a field that is declared without nulls."""
    structs = filter(pa.types.is_struct, types_in(type))
    return any(not field.nullable for struct in structs for field in struct)


def _struct(column: pa.StructArray, to: pa.StructType) -> pa.StructArray:
    fields, children, is_there = list(column.type), [], column.is_valid()
    for place, field in enumerate(fields):
        child, wanted = column.field(place), to.get_field_index(field.name)
        if wanted >= 0:
            child = without_hidden_nulls(child, to.field(wanted).type)
            if not to.field(wanted).nullable and not _any(pc.and_(child.is_null(), is_there)):
                child = _without_validity(child)
        children.append(child)
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _any(values: pa.BooleanArray) -> bool:
    return bool(values.true_count)


def _without_validity(array: pa.Array) -> pa.Array:
    """The values behind nulls are undefined; nobody reads those of a null struct."""
    if array.buffers()[0] is None:
        return array
    if pa.types.is_struct(array.type):
        children = [array.field(place) for place in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(array.type))
    return _with_children(array, _children(array), has_validity=False)


def _children(array: pa.Array) -> list[pa.Array]:
    if pa.types.is_map(array.type):
        fields = [array.type.key_field, array.type.item_field]
        return [pa.StructArray.from_arrays([array.keys, array.items], fields=fields)]
    return [array.values] if pa.types.is_list(array.type) else []


def _with_children(
    array: pa.Array, children: list[pa.Array], *, has_validity: bool = True
) -> pa.Array:
    own = array.buffers()[: array.type.num_buffers]
    if not has_validity:
        own = [None, *own[1:]]
    return pa.Array.from_buffers(
        array.type, len(array), own, offset=array.offset, children=children
    )
