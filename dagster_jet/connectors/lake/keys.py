"""Keys of upserts and mirrors: which columns may be one, and what rows need for it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dagster_jet.connectors.change_columns import not_changes
from dagster_jet.core.choices import check_known
from dagster_jet.errors import ConfigurationError, PipelineError

MODES = ("append", "upsert", "mirror")


def check_key(mode: str, key: Sequence[str], order_by: str | None) -> None:
    """
    Raises:
        ConfigurationError: the mode is unknown, has a key too many, or lacks one.
    """
    check_known("mode", mode, MODES)
    if (mode == "append") == bool(key):
        needs = "needs no" if key else "needs a"
        raise ConfigurationError(
            f"key: mode {mode!r} {needs} key.", cure='Name the columns: mode="upsert", key=["id"].'
        )
    if order_by is not None and mode != "upsert":
        raise ConfigurationError(f"order_by: mode {mode!r} has no use for it.")


def check_keyed_by(columns: pa.Schema, key: Sequence[str], order_by: str | None) -> None:
    """
    Raises:
        PipelineError: rows cannot be merged by these columns; names the column.
    """
    for name in key:
        if name not in columns.names or not _is_exact(columns.field(name).type):
            raise PipelineError(
                f"{name!r} cannot be a part of the key: the rows have no such column, or it has "
                "another type than those of keys.",
                cure="Name columns of text, integers, booleans, dates, times or bytes.",
            )
    if order_by is not None and order_by not in columns.names:
        raise PipelineError(f"order_by: the rows have no column {order_by!r}.")


def check_changes(rows: pa.Schema, key: Sequence[str], table: str) -> None:
    """
    Raises:
        PipelineError: the rows are no changes that a mirror applies.
    """
    if why := not_changes(rows, key):
        raise PipelineError(
            f"the rows cannot be mirrored in the table {table!r}: {why}.",
            cure="Read them from sources.postgres_changes, or from sources.kafka with "
            'format="debezium", and keep these columns.',
        )


def _is_exact(type: pa.DataType) -> bool:
    """Returns whether equal values of a type are equal for all readers."""
    types = pa.types
    return bool(
        types.is_string(type)
        or types.is_large_string(type)
        or types.is_integer(type)
        or types.is_boolean(type)
        or types.is_date(type)
        or types.is_timestamp(type)
        or types.is_binary(type)
        or types.is_large_binary(type)
    )
