"""Entries of a map as a bounded source: read once, partition by partition.

An epoch reads the current entries of its partitions, so the result is not a consistent snapshot of
the map. The position is the number of partitions read. After the last partition the source is
complete, even if the map is written to later.

At-least-once: after a restart the partitions of the epochs since the last snapshot are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.maps.entry_columns import (
    ValueColumn,
    arrow_value_type,
    existing,
    key_text,
)
from dagster_jet.contract import BadRowRule, Lag, Source, SourceFrame, SourceReader
from dagster_jet.errors import SourceError
from dagster_jet.maps import JetMap
from dagster_jet.store import Store
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIRST_GUESS_ROWS_PER_PARTITION = 100.0
_ROWS_PER_BATCH = 5_000


@dataclass(frozen=True)
class MapEntriesSource(Source):
    """All entries of a map, once. Columns: key, value."""

    map: str
    value_schema: str | None = None
    bound: JetMap | None = field(default=None, compare=False, repr=False)

    def row_schema(self) -> str:
        """The columns as DDL."""
        return f"key string, value {self.value_column().type}"

    def describe(self) -> dict[str, str]:
        return {"kind": "map_entries", "map": self.map}

    def with_store(self, store: Store) -> MapEntriesSource:
        return replace(self, bound=JetMap(store, self.map, None))

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> MapEntriesReader:
        """Returns the reader without a request to the store, so that `poll` handles an outage."""
        assert self.bound is not None, "the engine puts it on the job's store first"
        return MapEntriesReader(self, self.bound, job, stage, bad_rows)

    def value_column(self) -> ValueColumn:
        """Returns the conversion of values to a column, by the map's format."""
        format = self.bound.settings.format if self.bound is not None else "json"
        return ValueColumn(self.value_schema, format)


@dataclass
class MapEntriesReader(SourceReader):
    """Plans partitions on the driver."""

    source: MapEntriesSource
    map: JetMap
    job: str
    stage: str
    bad_rows: BadRowRule | None
    _next: int = 0
    _is_known: bool = False
    _rows_per_partition: float = _FIRST_GUESS_ROWS_PER_PARTITION

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._next = position["partitions"]
        if self._next > self.map.partition_count:
            raise SourceError(
                f"{self._next} partitions were read, but the store has {self.map.partition_count}.",
                job=self.job,
                stage=self.stage,
            )

    @property
    def value(self) -> ValueColumn:
        """Conversion of values to a column."""
        return self.source.value_column()

    def poll(self) -> None:
        if not self._is_known:
            existing(self.map.log.read_applied(), self.job, self.stage, self.map.name)
            self.value.check(self.job, self.stage, self.map.name)

    def accept(self, found: None) -> None:
        self._is_known = True

    def waiting(self) -> Lag:
        partitions = self.map.partition_count - self._next if self._is_known else 0
        # At least one per partition: an empty one is only known once it is read.
        items = max(partitions, int(partitions * self._rows_per_partition))
        return Lag(items=items, details={"partitions": partitions})

    def plan(self, max_rows: int) -> range | None:
        left = self.map.partition_count - self._next
        if left == 0 or not self._is_known:
            return None
        count = min(left, max(1, int(max_rows / max(1.0, self._rows_per_partition))))
        taken = range(self._next, self._next + count)
        self._next = taken.stop
        return taken

    def frame(self, spark: SparkSession, split: range) -> SourceFrame:
        raw = self._raw(spark, split)
        if self.bad_rows is None:
            return SourceFrame(self.value.parsed(raw))
        from pyspark.sql import functions as F

        return self.value.split(raw, self.bad_rows, self.stage, F.col("key"))

    def verify(self, split: range, rows: int) -> None:
        self._rows_per_partition = max(0.01, rows / len(split))

    def locate_bad_row(self, spark: SparkSession, split: range) -> str | None:
        from pyspark.sql import functions as F

        return self.value.first_bad(self._raw(spark, split), F.col("key"))

    def position(self) -> dict[str, Any]:
        return {"partitions": self._next}

    def _raw(self, spark: SparkSession, split: range) -> DataFrame:
        tasks = min(spark.sparkContext.defaultParallelism, len(split))
        task = EntriesTask(self.map, self.value, split)
        numbers = spark.range(0, len(split), 1, tasks)
        return numbers.mapInArrow(
            OwnTask(task, self.stage), f"key string, value {self.value.raw_type}"
        )


@dataclass(frozen=True)
class EntriesTask:
    """Reads partitions of a map inside Spark tasks."""

    map: JetMap
    value: ValueColumn
    partitions: range

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            partitions = [self.partitions[number] for number in batch.column(0).to_pylist()]
            records = self.map.records(partitions)
            while some := list(islice(records, _ROWS_PER_BATCH)):
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([key_text(record.key) for record in some], pa.string()),
                        pa.array(
                            [self.value.of(record.value) for record in some],
                            arrow_value_type(self.value),
                        ),
                    ],
                    names=["key", "value"],
                )
