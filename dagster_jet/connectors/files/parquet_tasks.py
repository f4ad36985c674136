"""Reads Parquet in tasks, and detects files that Spark's own reader reads identically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet

from dagster_jet.connectors.files.bad_rows import FAULT_COLUMN, FILE_COLUMN
from dagster_jet.connectors.files.old_calendar import OldCalendar
from dagster_jet.connectors.files.parquet_columns import UnfitError, as_declared, spelling
from dagster_jet.connectors.files.parquet_footer import (
    MAGIC,
    PLAIN_CODECS,
    PLAIN_ENCODINGS,
    column_chunks,
    open_parquet,
    row_groups,
)
from dagster_jet.connectors.files.part_tasks import ReadParts
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.task_shares import TaskShares
from dagster_jet.errors import BadRowError
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def parquet_by_tasks(
    spark: SparkSession,
    place: tuple[str, StorageOptions],
    shares: TaskShares[Slice],
    columns: StructType,
    folders: StructType,
    *,
    names_files: bool,
) -> DataFrame:
    """Returns the columns of all rows. Runs no Spark job.

    Args:
        place: arguments of `open_input`.
        shares: slices of each task.
        columns: used columns of the files.
        folders: columns from the names of folders, behind those of the files.
        names_files: see `ReadParts`.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    own, named = (to_arrow_schema(types, timezone="UTC") for types in (columns, folders))
    read = ReadTables(place, shares, names_files, named, own)
    names = (FILE_COLUMN, FAULT_COLUMN) if names_files else ()
    texts = (StructField(name, StringType()) for name in names)
    types = StructType([*columns.fields, *folders.fields, *texts])
    return spark.range(0, shares.tasks, 1, shares.tasks).mapInArrow(OwnTask(read), types)


@dataclass(frozen=True)
class ReadTables(ReadParts):
    """Reads the row groups that begin in the task's parts."""

    columns: pa.Schema
    checks_whole_files: ClassVar = False

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    def rows(self, part: Slice) -> Iterator[pa.RecordBatch]:
        with _opened(self.place, part.file) as (stream, file):
            begins = row_groups(stream)
            for number, at in enumerate(begins):
                # No part would contain it. An empty row group may begin anywhere.
                if not 0 < at < part.file.size and file.metadata.row_group(number).num_rows:
                    raise UnfitError("a row group begins outside of the file")
            groups = [n for n, at in enumerate(begins) if part.begin <= at < part.end]
            there = file.schema_arrow.names
            own = {name: spelling(name, there) for name in self.schema.names}
            wanted = [name for name in own.values() if name is not None]
            calendar = OldCalendar.of(file.metadata)
            for batch in file.iter_batches(row_groups=groups, columns=wanted):
                columns = [
                    _column(batch, own[field.name], field, calendar) for field in self.schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def check(self, part: Slice) -> None:
        for _ in self.rows(part):
            pass


def _column(
    batch: pa.RecordBatch, name: str | None, field: pa.Field, calendar: OldCalendar
) -> pa.Array:
    if name is None:
        return pa.nulls(batch.num_rows, field.type)
    return as_declared(calendar.converted(batch.column(name), name), field.type, name)


@contextmanager
def _opened(
    place: tuple[str, StorageOptions], file: InputFile
) -> Iterator[tuple[BinaryIO, pyarrow.parquet.ParquetFile]]:
    with open_input(*place).open(file) as stream:
        try:
            with open_parquet(stream) as opened:
                yield opened, pyarrow.parquet.ParquetFile(opened, coerce_int96_timestamp_unit="us")
        except (pa.ArrowInvalid, UnfitError) as error:
            raise BadRowError(
                f"an input file does not fit the declared format or schema: {error}.",
                position=file.path,
                cure="Correct the format or the schema, or the file.",
            ) from error


# --- Spark's own reader --------------------------------------------------------------------------


def is_plainly(file: InputFile, columns: StructType) -> bool:
    """Returns whether Spark's reader, which is faster, certainly reads the same rows of a local
    file, because it has exactly the declared columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    declared = to_arrow_schema(columns, timezone="UTC")
    try:
        with open(file.path, "rb") as stream, open_parquet(stream) as opened:
            if opened.read(len(MAGIC)) != MAGIC:
                return False
            footer = pyarrow.parquet.read_metadata(opened)
            return (
                _has_plain_columns(footer.schema.to_arrow_schema(), declared)
                and OldCalendar.of(footer) == OldCalendar(dates=False, times=False)
                and _has_plain_pages(opened)
            )
    except (OSError, pa.ArrowInvalid):
        return False


def _has_plain_columns(found: pa.Schema, declared: pa.Schema) -> bool:
    names = [name.lower() for name in found.names]
    return all(
        names.count(field.name.lower()) == 1
        and found.get_field_index(field.name) >= 0
        and found.field(field.name).type == field.type
        and not _has_lists(field.type)
        for field in declared
    )


def _has_lists(type: pa.DataType) -> bool:
    """Returns whether the type has lists or maps, which have several encodings."""
    if pa.types.is_struct(type):
        return any(_has_lists(field.type) for field in type)
    return bool(pa.types.is_nested(type))


def _has_plain_pages(file: BinaryIO) -> bool:
    return all(
        chunk.codec in PLAIN_CODECS and chunk.encodings <= PLAIN_ENCODINGS
        for columns in column_chunks(file)
        for chunk in columns
    )
