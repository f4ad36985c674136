"""Structs without fields, which Parquet cannot hold."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dagster_jet.errors import PipelineError
from dagster_jet.operators.rows.nested_types import types_in


def refuse_empty_structs(columns: Iterable[pa.Field]) -> None:
    """
    Raises:
        PipelineError: a column is, or has in it, a struct without fields.
    """
    for column in columns:
        if any(pa.types.is_struct(kind) and kind.num_fields == 0 for kind in types_in(column.type)):
            raise PipelineError(
                f"the column {column.name!r} has a struct without fields, which Parquet cannot "
                "hold.",
                cure="Leave it out, or give it a field, with select().",
            )
