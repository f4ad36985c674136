"""Columns from the names of folders, as Hive and Spark partition files: `day=2024-01-01/a.json`.

A path or pattern says which of its folders are columns: `/in/day=*/hour=*/*.json`. The source's
schema gives them types. A sink names folders as Spark does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.files.file_metadata import COLUMNS, value_in
from dagster_jet.connectors.files.parquet_columns import UnfitError, as_declared
from dagster_jet.connectors.files.places.location import is_pattern
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.partitioned_rows import FOLDER_BYTES_MAX, NULL_FOLDER, Values
from dagster_jet.core.ddl import quoted_name, split_ddl
from dagster_jet.errors import BadRowError, PipelineError
from dagster_jet.operators.rows.far_times import far_reasons

_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Characters that Spark and Hive escape in names of folders."""


def columns_in(path: str, schema: str, *, is_file: bool = False) -> tuple[str, ...]:
    """Returns the declared columns that the folders of a path name.

    Args:
        path: of a folder, a pattern of files, or a file.
    """
    there = {name.lower() for name in _named(path, is_file=is_file or is_pattern(path))}
    return tuple(name for name, _ in split_ddl(schema) if name.lower() in there)


def with_columns(path: str, schema: str) -> str:
    """Returns the schema of files with the columns that their folders name, as text."""
    there = {name.lower() for name, _ in split_ddl(schema)}
    named = _named(path, is_file=is_pattern(path))
    more = (name for name in named if name.lower() not in there)
    return ", ".join([schema, *(f"{quoted_name(name)} string" for name in more)])


def without(schema: str, columns: Collection[str]) -> str:
    """Returns the definitions of the other columns."""
    kept = (one for one in split_ddl(schema) if one[0] not in columns)
    return ", ".join(f"{quoted_name(name)} {rest}" for name, rest in kept)


def not_named(file: str, named: Collection[str], schema: str) -> tuple[str, ...]:
    """Returns the declared columns that the file's folders name and the pattern does not.

    Args:
        named: `columns_in` of the pattern.
    """
    return tuple(column for column in columns_in(file, schema, is_file=True) if column not in named)


def constants(file: InputFile, columns: pa.Schema) -> list[pa.Scalar]:
    """Returns the values of columns from the names of a file's folders, and about the file.

    Raises:
        BadRowError: a value does not fit its declared type.
    """
    named = _named(file.path, is_file=True)
    values = {name.lower(): value for name, value in named.items()}
    return [
        value_in(file, field)
        if field.name in COLUMNS
        else _typed(file.path, field, values.get(field.name.lower()))
        for field in columns
    ]


def folder_of(by: Sequence[str], values: Values) -> str:
    """Returns the folder of a partition, with a slash at its end; "" without partitions. An empty
    text has that of null, as Spark does it."""
    return "".join(f"{_folder(n, v)}/" for n, v in zip(by, values, strict=True))


def without_folder(rows: pa.RecordBatch, by: Collection[str]) -> dict[int, str]:
    """Returns, by row number, why no folder can be named after the value of a partition column."""
    found: dict[int, str] = {}
    for name in by:
        texts = rows.column(name)
        found |= far_reasons(name, texts)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            continue
        longest = pc.max(pc.binary_length(texts)).as_py() or 0
        if len(_folder(name, "").encode()) + 3 * longest <= FOLDER_BYTES_MAX:
            continue
        for number, text in enumerate(texts.to_pylist()):
            if len(_folder(name, text).encode()) > FOLDER_BYTES_MAX:
                found[number] = f"{name} is too long for the name of a folder"
    return found


def check_partition_by(columns: pa.Schema, by: Sequence[str], job: str, stage: str) -> None:
    """Raises `PipelineError` if rows with these columns cannot be divided."""
    types, wrong = pa.types, None
    kinds = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean)
    for name in by:
        if name not in columns.names:
            wrong = f"{name!r} is not a column; there are {', '.join(columns.names)}"
        elif not any(is_kind(columns.field(name).type) for is_kind in (*kinds, types.is_date)):
            wrong = f"{name!r} is {columns.field(name).type}, not a text, integer, boolean or date"
    if set(columns.names) == set(by):
        wrong = "files would have no columns, because folders have all of them"
    if wrong is not None:
        raise PipelineError(
            f"partition_by: {wrong}.",
            job=job,
            stage=stage,
            cure="Add the column with select(), such as date(at) AS day, or name others.",
        )


def _folder(name: str, value: str | None) -> str:
    return f"{_escaped(name)}={_escaped(value) if value else NULL_FOLDER}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _typed(file: str, field: pa.Field, value: str | None) -> pa.Scalar:
    text = None if value is None or value == NULL_FOLDER else unquote(value)
    try:
        return as_declared(pa.array([text], pa.string()), field.type, field.name)[0]
    except UnfitError as error:
        raise BadRowError(
            f"the folder {field.name}={value} does not fit the schema: {error}.",
            position=file,
            cure="Correct the schema, or move the file.",
        ) from error


def _named(path: str, *, is_file: bool) -> dict[str, str]:
    """Returns values by name, of the folders that are called `name=value`."""
    folders = path.split("/")[: -1 if is_file else None]
    parts = (folder.partition("=") for folder in folders)
    return {unquote(name): value for name, equals, value in parts if name and equals}
