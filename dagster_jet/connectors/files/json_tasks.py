"""JSON lines read by tasks: into Arrow's columns where that is certain, else as text for Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.dealt import Dealt
from dagster_jet.connectors.files import json_rows
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.task_rows import (
    BYTE_ORDER_MARK,
    LINE_COLUMN,
    as_text,
    blocks,
    end_of,
    lines_of,
    open_lines,
)
from dagster_jet.core.ddl import quoted_name
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PARSED_COLUMN = "__parsed"


def json_rows_by_tasks(
    spark: SparkSession,
    place: tuple[str, StorageOptions],
    dealt: Dealt[Slice],
    schema: StructType,
    options: Mapping[str, str],
) -> DataFrame:
    """Their rows. Runs nothing.

    Args:
        place: what `open_input` takes.
        dealt: what each task reads.
        schema: one that `json_rows.can_parse`.
        options: as for Spark's reader.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    read = ReadJson(
        place,
        dealt,
        to_arrow_schema(schema, timezone="UTC"),
        is_utc=spark.conf.get("spark.sql.session.timeZone") == "UTC",
    )
    columns = [*schema.fields, StructField(LINE_COLUMN, StringType())]
    rows = spark.range(0, dealt.tasks, 1, dealt.tasks).mapInArrow(
        OwnTask(read), StructType(columns)
    )
    # A line that is null costs nothing here; the others are parsed once, whatever is read of them.
    rows = rows.withColumn(_PARSED_COLUMN, F.from_json(LINE_COLUMN, schema, dict(options)))
    is_read = F.col(LINE_COLUMN).isNull()
    names = [quoted_name(field.name) for field in schema]
    return rows.select(
        *(
            F.when(is_read, F.col(name)).otherwise(F.col(f"{_PARSED_COLUMN}.{name}")).alias(of.name)
            for name, of in zip(names, schema, strict=True)
        )
    )


@dataclass(frozen=True)
class ReadJson:
    """A task: the rows of its slices by columns, or the text of their lines in `LINE_COLUMN`."""

    place: tuple[str, StorageOptions]
    dealt: Dealt[Slice]
    schema: pa.Schema
    is_utc: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in self.dealt.to(batches):
            for part in parts:
                yield from self._read(part)

    def _read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        with open_lines(self.place, part.file) as stream:
            for number, block in enumerate(blocks(stream, part.begin, end_of(part))):
                parsed = json_rows.parse(block, self.schema, is_utc=self.is_utc)
                if parsed is not None:
                    yield parsed.append_column(LINE_COLUMN, pa.nulls(parsed.num_rows, pa.string()))
                    continue
                lines = lines_of(block)
                if lines and number == part.begin == 0:
                    lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
                if lines:
                    yield self._unread(lines)

    def _unread(self, lines: list[bytes]) -> pa.RecordBatch:
        columns = [pa.nulls(len(lines), field.type) for field in self.schema]
        names = [*self.schema.names, LINE_COLUMN]
        return pa.RecordBatch.from_arrays([*columns, as_text(lines)], names)
