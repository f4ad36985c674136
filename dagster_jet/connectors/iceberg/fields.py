"""Columns of a table as Arrow types, compared with those of rows."""

from __future__ import annotations

import pyarrow as pa

from dagster_jet.errors import PipelineError
from dagster_jet.operators.rows.nested_types import types_in

_SMALL = frozenset({pa.int8(), pa.int16(), pa.uint8()})
_OF_ROWS = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64),
    *(pa.types.is_decimal, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_string),
    *(pa.types.is_binary, pa.types.is_nested),
)
"""Types of rows that Iceberg has."""
_WIDER = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}


def of_table(schema: pa.Schema) -> pa.Schema:
    """Returns the columns that a table has for rows: every part may be null, and integers have 4 or
    8 bytes."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def check_types(rows: pa.Schema) -> None:
    """
    Raises:
        PipelineError: a table cannot have a column of the rows; names it.
    """
    for field in rows:
        if not all(any(is_so(kind) for is_so in _OF_ROWS) for kind in types_in(_plain(field.type))):
            raise PipelineError(
                f"an Iceberg table cannot have the column {field.name!r}: {field.type}.",
                cure="Convert it, or leave it out, in select(...) before write_to().",
            )


def extended(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Returns the columns of a table with those of rows that it lacks, under any spelling, and with
    types that are widened for the rows, as far as the format allows it."""
    ours, known = of_table(rows), {name.lower() for name in table.names}
    kept = [
        field.with_type(ours.field(field.name).type)
        if field.name in ours.names and _is_wider(ours.field(field.name).type, field.type)
        else field
        for field in table
    ]
    return pa.schema([*kept, *(field for field in ours if field.name.lower() not in known)])


def _is_wider(type: pa.DataType, than: pa.DataType) -> bool:
    if pa.types.is_decimal(type) and pa.types.is_decimal(than):
        return bool(type.scale == than.scale and type.precision > than.precision)
    return bool(_WIDER.get(than) == type)


def misfit(table: pa.Schema, rows: pa.Schema) -> str | None:
    """Returns why rows do not fit a table; None if they do."""
    types = {field.name: field.type for field in of_table(table)}
    for field in of_table(rows):
        if field.name not in types:
            similar = [known for known in types if known.lower() == field.name.lower()]
            but = f", but {similar[0]!r}" if similar else ""
            return f"the table has no column {field.name!r}{but}"
        if field.type != types[field.name]:
            return (
                f"the column {field.name!r} is {field.type}, in the table it is {types[field.name]}"
            )
    missing = [name for name in types if name not in rows.names]
    return f"the rows have no column {missing[0]!r}" if missing else None


def inner_not_null(schema: pa.Schema) -> str | None:
    """Returns a column of which a part is never null."""
    return next((field.name for field in schema if _has_not_null(field.type)), None)


def _plain(type: pa.DataType) -> pa.DataType:
    if type in _SMALL:
        return pa.int32()
    if pa.types.is_large_string(type):
        return pa.string()
    if pa.types.is_large_binary(type):
        return pa.binary()
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_plain(type.key_type), _plain(type.item_type))
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(pa.field("element", _plain(type.value_type)))
    return type


def _has_not_null(type: pa.DataType) -> bool:
    if pa.types.is_map(type):
        parts = [type.item_field]
    elif pa.types.is_list(type) or pa.types.is_large_list(type):
        parts = [type.value_field]
    else:
        parts = list(type) if pa.types.is_struct(type) else []
    return any(not part.nullable or _has_not_null(part.type) for part in parts)
