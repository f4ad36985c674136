"""Columns from the names of folders, as Hive and Spark partition files: `day=2024-01-01/a.json`.

A path or pattern says which of its folders are columns: `/in/day=*/hour=*/*.json`. The source's
schema gives them types.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote

import pyarrow as pa

from dagster_jet.connectors.files.parquet_columns import UnfitError, as_declared
from dagster_jet.core.ddl import quoted_name, split_ddl
from dagster_jet.errors import BadRowError

_NULL = "__HIVE_DEFAULT_PARTITION__"


def columns_in(path: str, schema: str) -> tuple[str, ...]:
    """Returns the declared columns that the folders of a path or pattern name."""
    there = {name.lower() for name in _named(path)}
    return tuple(name for name, _ in split_ddl(schema) if name.lower() in there)


def with_columns(path: str, schema: str) -> str:
    """Returns the schema of files with the columns that their folders name, as text."""
    there = {name.lower() for name, _ in split_ddl(schema)}
    more = (name for name in _named(path) if name.lower() not in there)
    return ", ".join([schema, *(f"{quoted_name(name)} string" for name in more)])


def without(schema: str, columns: Collection[str]) -> str:
    """Returns the definitions of the other columns."""
    kept = (one for one in split_ddl(schema) if one[0] not in columns)
    return ", ".join(f"{quoted_name(name)} {rest}" for name, rest in kept)


def not_named(file: str, path: str, schema: str) -> tuple[str, ...]:
    """Returns the declared columns that the file's folders name and the pattern does not."""
    named = columns_in(path, schema)
    return tuple(column for column in columns_in(file, schema) if column not in named)


def constants(file: str, columns: pa.Schema) -> list[pa.Scalar]:
    """Returns the values of the columns in a file's folders.

    Raises:
        BadRowError: a value does not fit its declared type.
    """
    values = {name.lower(): value for name, value in _named(file).items()}
    return [_typed(file, field, values.get(field.name.lower())) for field in columns]


def _typed(file: str, field: pa.Field, value: str | None) -> pa.Scalar:
    text = None if value is None or value == _NULL else unquote(value)
    try:
        return as_declared(pa.array([text], pa.string()), field.type, field.name)[0]
    except UnfitError as error:
        raise BadRowError(
            f"the folder {field.name}={value} does not fit the schema: {error}.",
            position=file,
            cure="Correct the schema, or move the file.",
        ) from error


def _named(path: str) -> dict[str, str]:
    """Values by name, of the folders that are called `name=value`."""
    folders = (folder.partition("=") for folder in path.split("/")[:-1])
    last = path.rpartition("/")[2].partition("=")  # a path may end with a folder
    return {name: value for name, equals, value in (*folders, last) if name and equals}
