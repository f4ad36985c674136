"""Structs without fields, which Parquet cannot hold."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dagster_jet.errors import PipelineError


def refuse_empty_structs(columns: Iterable[pa.Field]) -> None:
    """
    Raises:
        PipelineError: a column is, or has in it, a struct without fields.
    """
    for column in columns:
        if _is_empty(column.type):
            raise PipelineError(
                f"the column {column.name!r} has a struct without fields, which Parquet cannot "
                "hold.",
                cure="Leave it out, or give it a field, with select().",
            )


def _is_empty(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_is_empty(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _is_empty(kind.key_type) or _is_empty(kind.item_type)
    return pa.types.is_list(kind) and _is_empty(kind.value_type)
