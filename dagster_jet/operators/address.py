"""Address columns: the first columns of every keyed row, in input and in state."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dagster_jet.errors import PipelineError
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    Operator,
)

ADDRESS = (
    pa.field(PARTITION_COLUMN, pa.int32()),
    pa.field(HASH_COLUMN, pa.int64()),
    pa.field(TIME_COLUMN, pa.int64()),
)
"""Partition, hash of the key, event time in ms. Never null."""


def check_columns(operator: Operator, keys: Sequence[str]) -> None:
    """Refuses, when a stage is planned, schemas that would fail with the first row.

    Raises:
        PipelineError: a column of the stream has the name of one of the operator's own columns, or
            a key has a type whose values Arrow cannot compare.
    """
    for schema in (*operator.input_schemas, operator.state_schema):
        taken = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if taken:
            raise PipelineError(
                f"{', '.join(taken)} cannot be a column of the stream: the stage adds a column "
                "of that name.",
                cure="Rename it with select() before the stage.",
            )
        for key in keys:
            kind = schema.field(key).type
            if pa.types.is_nested(kind):
                raise PipelineError(
                    f"{key!r} is {kind}, which cannot be a key.",
                    cure="Use its fields as keys, or convert it to a string: select to_json(...) "
                    "first.",
                )
