"""Data files that a table has got, and how Spark's tasks read their rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet.connectors.files.old_calendar import OldCalendar
from dagster_jet.connectors.files.parquet_columns import UnfitError, as_declared, spelling
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.lake.field_ids import FieldIds, Path, with_names_of
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.connectors.task_shares import FixedShares, TaskShares
from dagster_jet.errors import BadRowError
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WHOLE = re.compile("/|[a-z0-9]+://")


@dataclass(frozen=True)
class AddedFile:
    """A data file, with its place in the order in which a source reads."""

    version: int
    number: int
    """In its version."""
    path: str
    """Path in the table's folder, or the whole one."""
    bytes: int
    rows: int | None
    """None: the table's metadata do not say it."""
    partition: tuple[tuple[str, Any], ...] = ()
    """Values of columns that the file may lack. Dates and times are texts (Delta Lake), or days and
    microseconds (Iceberg)."""
    is_joined: bool = False
    """Whether it is read in one epoch with the file before it."""
    mapped: Mapping[Path, int] = field(default_factory=dict, compare=False)
    """Ids of columns by name, as the table has them in its version; for a file without ids."""


@dataclass(frozen=True)
class Piece:
    """Rows of a file that are read in one epoch."""

    file: AddedFile
    first: int
    end: int | None
    """Number of the row behind the last one; None: to the end."""


def shares_of(spark: SparkSession, split: Sequence[Piece]) -> TaskShares[Piece]:
    """Each task reads neighbouring pieces."""
    tasks = min(len(split), max(1, int(spark.sparkContext.defaultParallelism)))
    each = -(-len(split) // tasks)
    return FixedShares(tuple(tuple(split[n : n + each]) for n in range(0, len(split), each)))


def frame_of(
    spark: SparkSession, table: TableRead, shares: TaskShares[Piece], stage: str
) -> DataFrame:
    """Returns the rows of the pieces."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    columns = cast(StructType, StructType.fromDDL(table.schema))
    schema = to_arrow_schema(columns, timezone="UTC")
    read = ReadPieces(table, shares, schema)
    return spark.range(0, shares.tasks, 1, shares.tasks).mapInArrow(OwnTask(read, stage), columns)


def whole_frame_of(
    spark: SparkSession, table: TableRead, files: Sequence[AddedFile], stage: str
) -> DataFrame:
    """Returns all rows of the files."""
    if not files:
        return spark.createDataFrame([], table.schema)
    pieces = [Piece(file, 0, None) for file in files]
    return frame_of(spark, table, shares_of(spark, pieces), stage)


def are_there(url: str, options: StorageOptions, files: Iterable[AddedFile]) -> bool:
    """Whether no file of an earlier version has been removed."""
    place = open_input(url, options)
    return all(place.find(_whole(url, one.path)) is not None for one in files)


def _whole(url: str, path: str) -> str:
    return path if _WHOLE.match(path) else f"{url}/{path}"


@dataclass(frozen=True)
class ReadPieces:
    """Reads the pieces of the tasks whose numbers it gets."""

    table: TableRead
    shares: TaskShares[Piece]
    columns: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for pieces in self.shares.to(batches):
            for piece in pieces:
                yield from self._rows(piece)

    def _rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        table, path = self.table, piece.file.path
        place = open_input(table.url, table.storage_options)
        found = place.find(_whole(table.url, path))
        if found is None:
            raise BadRowError(
                f"a data file of the table {self.table.name!r} is gone.",
                position=piece.file.path,
                cure="It was removed before it was read, such as by VACUUM: keep files longer than "
                "a job is down. Bring it back, or start a job of another name.",
            )
        with place.open(found) as stream:
            file, at = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us"), 0
            with self._misfits_named(path):
                there = self._found(file.schema_arrow, piece.file.mapped)
            calendar = OldCalendar.of(file.metadata)
            # A file of Delta Lake lacks these columns, one of Iceberg mostly has them.
            own = there if self.table.names else {}
            values = {n: value for n, value in piece.file.partition if n not in own}
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if at + count > piece.first and (piece.end is None or at < piece.end):
                    first = max(0, piece.first - at)
                    end = count if piece.end is None else min(count, piece.end - at)
                    rows = file.read_row_group(group).slice(first, end - first)
                    for batch in rows.to_batches():
                        with self._misfits_named(path):
                            made = self._as_declared(batch, there, values, calendar)
                        yield made
                at += count

    @contextmanager
    def _misfits_named(self, path: str) -> Iterator[None]:
        try:
            yield
        except UnfitError as error:
            raise BadRowError(
                f"a data file of the table {self.table.name!r} does not fit: {error}.",
                position=path,
                cure="If the table's columns were changed, start the job again: it reads the "
                "present ones.",
            ) from error

    def _found(
        self, file: pa.Schema, mapped: Mapping[Path, int]
    ) -> dict[str, tuple[int, pa.DataType]]:
        """Returns number and type of each declared column that a file has. The type has the names
        of the table."""
        renamed = FieldIds(self.table.names, mapped).renamed(file)
        own = {name: spelling(name, renamed.names) for name in self.columns.names}
        numbers = {name: renamed.get_field_index(other) for name, other in own.items() if other}
        return {name: (number, renamed.field(number).type) for name, number in numbers.items()}

    def _as_declared(
        self,
        batch: pa.RecordBatch,
        there: dict[str, tuple[int, pa.DataType]],
        values: dict[str, Any],
        calendar: OldCalendar,
    ) -> pa.RecordBatch:
        columns = []
        for declared in self.columns:
            name, type = declared.name, declared.type
            if name in values:
                columns.append(_repeated(values[name], type, batch.num_rows))
            elif name in there:
                number, renamed = there[name]
                column = with_names_of(renamed, batch.column(number))
                column = calendar.converted(column, name)
                columns.append(as_declared(column, type, name))
            else:  # written before the table had it
                columns.append(pa.nulls(batch.num_rows, type))
        return pa.RecordBatch.from_arrays(columns, schema=self.columns)


def _repeated(value: Any, type: pa.DataType, count: int) -> pa.Array:
    if value is None:
        return pa.nulls(count, type)
    given = pa.array([value])
    if pa.types.is_integer(given.type) and pa.types.is_temporal(type):
        given = given.cast(pa.int32()).cast(type) if pa.types.is_date(type) else _time(given, type)
    one = as_declared(given, type, "a partition's value")
    return one.take(pa.array([0] * count, pa.int64()))


def _time(us: pa.Array, type: pa.DataType) -> pa.Array:
    return us.cast(pa.time64("us") if pa.types.is_time(type) else pa.timestamp("us", type.tz))
