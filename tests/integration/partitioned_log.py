"""A source with partitions for tests: one JSON-lines file each, read at a rate of its own.

All its partitions are there from the start and stay, as in a log that others write to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.contract import (
    SOURCE_PARTITION_COLUMN,
    BadRowRule,
    Lag,
    Source,
    SourceFrame,
    SourceReader,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PartitionedLog(Source):
    folder: str
    rates: Mapping[str, int]
    """Per partition, how many rows an epoch reads."""
    schema: str = "k string, ts bigint, v bigint"

    def row_schema(self) -> str:
        return self.schema

    def describe(self) -> dict[str, str]:
        return {"kind": "partitioned_log", "folder": self.folder}

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> PartitionedLogReader:
        return PartitionedLogReader(self)


@dataclass
class PartitionedLogReader(SourceReader):
    is_partitioned = True

    source: PartitionedLog
    _next: dict[str, int] = field(default_factory=dict)
    _lines: dict[str, list[str]] = field(default_factory=dict)

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._next = dict(position)

    def poll(self) -> dict[str, list[str]]:
        paths = {name: Path(self.source.folder) / f"{name}.json" for name in self.source.rates}
        return {
            n: p.read_text("utf-8").splitlines() if p.exists() else [] for n, p in paths.items()
        }

    def accept(self, found: dict[str, list[str]]) -> None:
        self._lines = found

    def waiting(self) -> Lag:
        return Lag(sum(self.partitions().values()), self.partitions())

    def partitions(self) -> dict[str, int]:
        return {name: len(lines) - self._next.get(name, 0) for name, lines in self._lines.items()}

    def plan(self, max_rows: int) -> dict[str, list[str]] | None:
        split = {}
        for name, rate in self.source.rates.items():
            start = self._next.get(name, 0)
            split[name] = self._lines[name][start : start + rate]
            self._next[name] = start + len(split[name])
        return split if any(split.values()) else None

    def frame(self, spark: SparkSession, split: dict[str, list[str]]) -> SourceFrame:
        from pyspark.sql import functions as F

        names = tuple(split)
        rows = [(line, names.index(name)) for name, lines in split.items() for line in lines]
        raw = spark.createDataFrame(rows, f"line string, {SOURCE_PARTITION_COLUMN} int")
        parsed = raw.select(
            F.from_json("line", self.source.schema).alias("r"), SOURCE_PARTITION_COLUMN
        )
        return SourceFrame(parsed.select("r.*", SOURCE_PARTITION_COLUMN), partitions=names)

    def position(self) -> dict[str, Any]:
        return dict(self._next)
