"""Keys of upserts and mirrors: which columns may be one, and what rows need for it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dagster_jet.connectors.change_columns import not_changes
from dagster_jet.connectors.delta.columns import PARTITION_TYPES, Columns
from dagster_jet.errors import ConfigurationError, PipelineError

KEY_TYPES = (*PARTITION_TYPES, "timestamp", "timestamp_ntz", "binary")
"""Types whose equal values are equal for all readers."""


def check_key(mode: str, key: Sequence[str], order_by: str | None) -> None:
    """
    Raises:
        ConfigurationError: the mode has a key too many, or lacks one.
    """
    if (mode == "append") == bool(key):
        needs = "needs no" if key else "needs a"
        raise ConfigurationError(
            f"key: mode {mode!r} {needs} key.",
            cure='Name the columns: delta(..., mode="upsert", key=["id"]).',
        )
    if order_by is not None and mode != "upsert":
        raise ConfigurationError(f"order_by: mode {mode!r} has no use for it.")


def check_keyed_by(columns: Columns, key: Sequence[str], order_by: str | None) -> None:
    """
    Raises:
        PipelineError: rows cannot be merged by these columns; names the column.
    """
    for name in key:
        if columns.types.get(name) not in KEY_TYPES:
            raise PipelineError(
                f"{name!r} cannot be a part of the key: the rows have no such column, or it has "
                "another type than those of keys.",
                cure=f"Name columns of the types {', '.join(KEY_TYPES)}.",
            )
    if order_by is not None and order_by not in columns.types:
        raise PipelineError(f"order_by: the rows have no column {order_by!r}.")


def check_changes(rows: pa.Schema, key: Sequence[str], url: str) -> None:
    """
    Raises:
        PipelineError: the rows are no changes that a mirror applies.
    """
    if why := not_changes(rows, key):
        raise PipelineError(
            f"the rows cannot be mirrored in the table {url!r}: {why}.",
            cure="Read them from sources.postgres_changes, and keep these columns.",
        )
