"""Schema of Parquet files if the source has none; all files must have the same one.

Files written by Spark contain Spark's schema, which counts if it describes the columns. For others
pyarrow's types are converted to Spark's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from dagster_jet.connectors.files.parquet_footer import open_parquet
from dagster_jet.connectors.files.places.place import InputFile, InputPlace
from dagster_jet.connectors.type_ddl import type_ddl
from dagster_jet.core.ddl import quoted_name, split_ddl
from dagster_jet.errors import ConfigurationError, SourceError, SourceUnavailableError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SPARKS_OWN = b"org.apache.spark.sql.parquet.row.metadata"
_CURE = 'Give column names and types: schema="id long, at timestamp".'


def schema_of_first(place: InputPlace, job: str, stage: str) -> str:
    """Returns the schema of the file that is read first, of those that are not damaged, as DDL.

    Raises:
        ConfigurationError: there is no file yet, or Spark does not support its columns, or all
            files are damaged.
        SourceUnavailableError: it cannot be read now.
    """
    try:
        files = sorted(place.listing().files)
    except (FileNotFoundError, NotADirectoryError):
        files = []
    except OSError as error:
        raise SourceUnavailableError(
            f"the files cannot be read now: {error}.", job=job, stage=stage
        ) from error
    damaged: ConfigurationError | None = None
    for file in files:
        try:
            return schema_of(place, file, job, stage)
        except ConfigurationError as error:
            if not isinstance(error.__cause__, pa.ArrowException):
                raise
            damaged = damaged or error
    raise damaged or ConfigurationError(
        f"{place.folder_url!r} has no Parquet file yet from which the columns could be read.",
        job=job,
        stage=stage,
        cure=_CURE,
    )


def schema_of(place: InputPlace, file: InputFile, job: str | None, stage: str | None) -> str:
    """Returns the schema of a file, as DDL.

    Raises:
        ConfigurationError: Spark does not support its columns, or it is damaged.
        SourceUnavailableError: it cannot be read now.
    """
    try:
        return _ddl(place, file)
    except OSError as error:
        raise SourceUnavailableError(
            f"the files cannot be read now: {error}.", job=job, stage=stage
        ) from error
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the columns of {file.path!r} cannot be read: {error}.",
            job=job,
            stage=stage,
            cure=_CURE,
        ) from error


def check_schema(
    place: InputPlace,
    file: InputFile,
    schema: str,
    job: str | None,
    stage: str | None,
    *,
    passes_damaged: bool = False,
) -> None:
    """Raises `SourceError` if a file's columns differ from `schema`, or it is not Parquet.

    Args:
        passes_damaged: whether a damaged file is left to the task that reads it.
    """
    try:
        found = dict(split_ddl(_ddl(place, file)))
    except (pa.ArrowException, TypeError, ValueError) as error:
        if passes_damaged and isinstance(error, pa.ArrowException):
            return
        found, difference = {}, f"cannot be read: {error}"
    else:
        difference = _difference(dict(split_ddl(schema)), found)
    if difference:
        raise SourceError(
            f"the columns of the file {difference}; the first file that was there at the start "
            f"has: {schema}.",
            job=job,
            stage=stage,
            position=file.path,
            cure="Give the columns that all files have as schema=, or take the file away.",
        )


def _difference(wanted: dict[str, str], found: dict[str, str]) -> str:
    missing = [name for name in wanted if name not in found]
    more = [name for name in found if name not in wanted]
    # A column of type void has no values.
    other = [f"{n} {found[n]}" for n in wanted if found.get(n, "void") not in (wanted[n], "void")]
    parts = [("lack", missing), ("have besides", more), ("are of another type", other)]
    return ", ".join(f"{word}: {', '.join(names)}" for word, names in parts if names)


def _ddl(place: InputPlace, file: InputFile) -> str:
    with place.open(file) as stream, open_parquet(stream) as opened:
        fields = _struct(pyarrow.parquet.ParquetFile(opened)).fields
    return ", ".join(f"{quoted_name(f.name)} {type_ddl(f.dataType)}" for f in fields)


def _struct(file: pyarrow.parquet.ParquetFile) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    by_spark = (file.schema_arrow.metadata or {}).get(SPARKS_OWN)
    if by_spark is None:
        by_spark = (file.metadata.metadata or {}).get(SPARKS_OWN)
    if by_spark is not None:
        said = StructType.fromJson(json.loads(by_spark))
        if _describes(said, file.schema_arrow):
            return said
    fields = [pa.field(f.name, _for_spark(f.type)) for f in file.schema_arrow]
    return from_arrow_schema(pa.schema(fields))


def _describes(said: StructType, found: pa.Schema) -> bool:
    """Other programs keep Spark's schema when they write other columns of a file that it wrote."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if said.names != found.names:
        return False
    return _is_alike(pa.struct(found), pa.struct(to_arrow_schema(said, timezone="UTC")))


def _is_alike(found: pa.DataType, said: pa.DataType) -> bool:
    if isinstance(found, pa.BaseExtensionType):
        return _is_alike(found.storage_type, said)
    if pa.types.is_timestamp(found) or pa.types.is_time(found):
        return bool(found.id == said.id)  # only Spark knows whether a time has a time zone
    if not pa.types.is_nested(found) or found.id != said.id:
        return bool(found == said)
    parts = [[kind.field(n) for n in range(kind.num_fields)] for kind in (found, said)]
    if pa.types.is_struct(found) and [f.name for f in parts[0]] != [f.name for f in parts[1]]:
        return False
    return all(_is_alike(a.type, b.type) for a, b in zip(*parts, strict=True))


_SIGNED: dict[Any, Any] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def _for_spark(type: pa.DataType) -> pa.DataType:
    """Returns the type that Spark's own reader gives a column."""
    if pa.types.is_dictionary(type):
        return _for_spark(type.value_type)
    return _SIGNED.get(type, type)
