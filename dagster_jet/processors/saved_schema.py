"""Saved state under today's schema: the same columns mean the same, or the restore is refused.

A pipeline's plan knows columns by name only. Their types are known to the planner and to the chunks
alone, and a key of another type has another hash: its state would be there and never be found. A
partial of another type could often be converted, but then a chain would hold both types for good.
"""

from __future__ import annotations

import pyarrow as pa

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.processors.operator import Operator


def in_state_schema(table: pa.Table, operator: Operator, stage: str) -> pa.Table:
    """State rows, as they were saved, in `Operator.state_schema`.

    Only whether a value may be null may differ: an expression before the stage decides about that.
    Columns that are no longer kept are left out.

    Raises:
        SnapshotInvalidError: a column is missing, or has another type.
    """
    wanted = operator.state_schema
    columns = [_column(table, field, stage) for field in wanted]
    return pa.Table.from_arrays(columns, schema=wanted)


def _column(table: pa.Table, field: pa.Field, stage: str) -> pa.ChunkedArray:
    place = table.schema.get_field_index(field.name)
    if place < 0:
        raise _refusal(stage, f"has no column {field.name!r}, which it needs now")
    column = table.column(place)
    if column.type == field.type:
        return column
    try:
        pa.unify_schemas([pa.schema([table.schema.field(place)]), pa.schema([field])])
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise _refusal(
            stage, f"has {field.name!r} as {column.type}, it is {field.type} now"
        ) from None


def _refusal(stage: str, what: str) -> SnapshotInvalidError:
    return SnapshotInvalidError(
        f"the state in the last snapshot {what}.",
        stage=stage,
        cure="Take the change back, or give the stage a new name: it then starts empty.",
    )
