"""Columns about the file of a row, named as the fields of Spark's `_metadata`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.core.ddl import split_ddl
from dagster_jet.errors import ConfigurationError

FileColumn: TypeAlias = Literal["file_path", "file_name", "file_size", "file_modification_time"]
COLUMNS = {
    "file_path": "string",
    "file_name": "string",
    "file_size": "long",
    "file_modification_time": "timestamp",
}
"""Types, as DDL."""


def check_metadata(metadata: Sequence[str], schema: str | None, folders: Sequence[str]) -> None:
    """Raises `ConfigurationError` for unknown names, and for those of other columns."""
    for name in metadata:
        if name not in COLUMNS:
            raise ConfigurationError(
                f"metadata: {name!r} is unknown.", cure=f"Use some of {', '.join(COLUMNS)}."
            )
    declared = {name.lower() for name, _ in split_ddl(schema or "")}
    twice = sorted(declared & set(metadata)) or sorted(name for name in folders if name in COLUMNS)
    if twice or len(set(metadata)) < len(metadata):
        raise ConfigurationError(
            f"metadata: there are two columns {', '.join(twice or metadata)}.",
            cure="Leave one of them out.",
        )


def with_metadata(schema: str, metadata: Sequence[str]) -> str:
    """Returns a schema with these columns behind the others."""
    return ", ".join([schema, *(f"{name} {COLUMNS[name]}" for name in metadata)])


def value_in(file: InputFile, column: pa.Field) -> pa.Scalar:
    """Returns the value of one of the columns."""
    values: dict[str, Any] = {
        "file_path": file.path,
        "file_name": file.path.rpartition("/")[2],
        "file_size": file.size,
        "file_modification_time": file.mtime_ns // 1000,
    }
    return pa.scalar(values[column.name], column.type)
