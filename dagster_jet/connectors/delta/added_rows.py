"""Reads rows of data files in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet.connectors.delta.table_changes import AddedFile
from dagster_jet.connectors.files.parquet_columns import UnfitError, as_declared
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.task_shares import FixedShares
from dagster_jet.errors import BadRowError
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Piece:
    """Rows of a file that are read in one epoch."""

    file: AddedFile
    first: int
    end: int | None
    """Number of the row behind the last one; None: to the end."""


def frame_of(
    spark: SparkSession,
    url: str,
    options: StorageOptions,
    split: Sequence[Piece],
    columns: StructType,
    stage: str,
) -> DataFrame:
    """Returns the rows of a split; each task reads neighbouring pieces."""
    from pyspark.sql.pandas.types import to_arrow_schema

    tasks = min(len(split), max(1, int(spark.sparkContext.defaultParallelism)))
    each = -(-len(split) // tasks)
    shares = FixedShares(tuple(tuple(split[n : n + each]) for n in range(0, len(split), each)))
    schema = to_arrow_schema(columns, timezone="UTC")
    read = ReadPieces(url, options, shares, schema)
    return spark.range(0, shares.tasks, 1, shares.tasks).mapInArrow(OwnTask(read, stage), columns)


@dataclass(frozen=True)
class ReadPieces:
    """Reads the pieces of the tasks whose numbers it gets."""

    url: str
    storage_options: StorageOptions
    shares: FixedShares[Piece]
    columns: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for pieces in self.shares.to(batches):
            for piece in pieces:
                yield from self._rows(piece)

    def _rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        place, path = open_input(self.url, self.storage_options), f"{self.url}/{piece.file.path}"
        found = place.find(path)
        if found is None:
            raise BadRowError(
                f"a data file of the table {self.url!r} is gone.",
                position=piece.file.path,
                cure="VACUUM has removed it before it was read: keep files longer than a job is "
                "down. Bring it back, or start a job of another name.",
            )
        values = dict(piece.file.partition)
        with place.open(found) as stream:
            file, at = pq.ParquetFile(stream), 0
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if at + count > piece.first and (piece.end is None or at < piece.end):
                    first = max(0, piece.first - at)
                    end = count if piece.end is None else min(count, piece.end - at)
                    rows = file.read_row_group(group).slice(first, end - first)
                    for batch in rows.to_batches():
                        yield self._as_declared(batch, values, piece.file.path)
                at += count

    def _as_declared(
        self, batch: pa.RecordBatch, values: dict[str, str | None], path: str
    ) -> pa.RecordBatch:
        columns = []
        for field in self.columns:
            if field.name in values:
                columns.append(_repeated(values[field.name], field.type, batch.num_rows))
            elif field.name in batch.schema.names:
                try:
                    columns.append(as_declared(batch.column(field.name), field.type, field.name))
                except UnfitError as error:
                    raise BadRowError(
                        f"a data file of the table {self.url!r} does not fit: {error}.",
                        position=path,
                        cure="Start the job again: it reads the table's present columns.",
                    ) from error
            else:  # written before the table had it
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.columns)


def _repeated(text: str | None, type: pa.DataType, count: int) -> pa.Array:
    if text is None or text == "":
        return pa.nulls(count, type)
    plain = pa.scalar(text, pa.string())
    if pa.types.is_timestamp(type):
        plain = plain.cast(pa.timestamp("us"))
    return pa.array([plain.cast(type).as_py()], type).take(pa.array([0] * count, pa.int64()))
