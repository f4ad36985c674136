"""Numbers at a rate: the smallest unbounded stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.generated.numbered import NumberedReader, checked_rate, tasks_for
from dagster_jet.contract import BadRowRule, Source, SourceFrame
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROW_BYTES = 16


@dataclass(frozen=True)
class SequenceSource(Source):
    """Columns: value (0, 1, 2, ...), timestamp (its arrival by the rate)."""

    rate: float
    count: int | None = None

    def __post_init__(self) -> None:
        checked_rate(self.rate, self.count)

    @property
    def bytes_per_row(self) -> int:
        return _ROW_BYTES

    def row_schema(self) -> str:
        return "value long, timestamp timestamp"

    def describe(self) -> dict[str, str]:
        end = {} if self.count is None else {"rows": f"{self.count:,}"}
        return {"kind": "sequence", "rate": f"{self.rate:,g} rows/s", **end}

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> NumberedReader:
        return NumberedReader(self, bad_rows)

    def frames(
        self, spark: SparkSession, numbers: range, start_ms: int, bad_rows: BadRowRule | None
    ) -> SourceFrame:
        ids = spark.range(numbers.start, numbers.stop, 1, tasks_for(spark, numbers))
        return self._rows(ids, start_ms)

    def prepared(
        self, spark: SparkSession, numbers: Callable[[], range], start_ms: int
    ) -> SourceFrame:
        ids = spark.range(0, 1, 1, 1).mapInArrow(OwnTask(NumbersTask(numbers)), "id long")
        return self._rows(ids, start_ms)

    def _rows(self, ids: DataFrame, start_ms: int) -> SourceFrame:
        from pyspark.sql import functions as F

        passed_us = F.floor(F.col("id") * F.lit(1_000_000.0) / F.lit(float(self.rate)))
        timestamp = F.timestamp_micros(F.lit(start_ms * 1000) + passed_us)
        rows = ids.select(F.col("id").alias("value"), timestamp.alias("timestamp"))
        return SourceFrame(rows)

    def first_bad(self, spark: SparkSession, numbers: range) -> str | None:
        return None


@dataclass(frozen=True)
class NumbersTask:
    """Lists the numbers of the current split."""

    numbers: Callable[[], range]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"id": pa.array(self.numbers(), pa.int64())})
