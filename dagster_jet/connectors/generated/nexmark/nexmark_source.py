"""NEXMark as a source: Spark's tasks generate the events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.generated.nexmark.event import event
from dagster_jet.connectors.generated.nexmark.model import Model
from dagster_jet.connectors.generated.nexmark.schema import arrow_schema, spark_ddl
from dagster_jet.connectors.generated.numbered import NumberedReader, checked_rate, tasks_for
from dagster_jet.contract import BadRowRule, Source, SourceFrame
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROW_BYTES = 200


@dataclass(frozen=True)
class NexmarkSource(Source):
    """Events of a model, in order of their arrival."""

    model: Model
    rate: float | None = None

    def __post_init__(self) -> None:
        checked_rate(self.rate, self.count)

    def row_schema(self) -> str:
        return spark_ddl()

    @property
    def count(self) -> int:
        return self.model.events

    @property
    def bytes_per_row(self) -> int:
        return _ROW_BYTES

    def describe(self) -> dict[str, str]:
        rate = {} if self.rate is None else {"rate": f"{self.rate:,g} rows/s"}
        return {"kind": "nexmark", "rows": f"{self.count:,}", "seed": f"{self.model.seed}", **rate}

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> NumberedReader:
        return NumberedReader(self, bad_rows)

    def frames(
        self, spark: SparkSession, numbers: range, start_ms: int, bad_rows: BadRowRule | None
    ) -> SourceFrame:
        places = spark.range(numbers.start, numbers.stop, 1, tasks_for(spark, numbers))
        return SourceFrame(places.mapInArrow(OwnTask(EventsTask(self.model)), spark_ddl()))

    def prepared(
        self, spark: SparkSession, numbers: Callable[[], range], start_ms: int
    ) -> SourceFrame:
        one = spark.range(0, 1, 1, 1)
        task = EventsTask(self.model, numbers)
        return SourceFrame(one.mapInArrow(OwnTask(task), spark_ddl()))

    def first_bad(self, spark: SparkSession, numbers: range) -> str | None:
        return None


@dataclass(frozen=True)
class EventsTask:
    """Generates the events that arrive at given places."""

    model: Model
    places: Callable[[], range] | None = None
    """The places of the current split; None: they are the input rows."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            places = batch.column(0).to_pylist() if self.places is None else self.places()
            rows = [event(self.model, self.model.number(place)) for place in places]
            yield pa.RecordBatch.from_pylist(rows, arrow_schema()).cast(_schema())


def _schema() -> pa.Schema:
    """Schema with times in microseconds, as in Spark."""

    def in_us(type_: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(type_):
            return pa.timestamp("us", "UTC")
        if pa.types.is_struct(type_):
            return pa.struct([field.with_type(in_us(field.type)) for field in type_])
        return type_

    return pa.schema([field.with_type(in_us(field.type)) for field in arrow_schema()])
