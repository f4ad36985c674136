"""Data files of a table: how rows are divided among them, and what the log keeps of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_jet.connectors.delta.columns import Columns
from dagster_jet.connectors.delta.log_statistics import as_json
from dagster_jet.connectors.delta.partitions import folder_of
from dagster_jet.connectors.delta.table_log import DataFile, TableLog
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.connectors.lake.statistics import Statistics
from dagster_jet.connectors.partitioned_rows import Values, divided
from dagster_jet.snapshot.manifest import Artifact

STATISTICS_MAX = 32
"""Number of leading columns with statistics, as other writers have it."""
_CHOICE = "delta.dataSkipping"
"""Beginning of properties that choose columns with statistics."""


@dataclass(frozen=True)
class DeltaLayout:
    """A file has the rows of one partition, without its columns."""

    partition_by: Sequence[str]
    columns: Sequence[str] | None
    """Columns with statistics; None: the first ones of the rows."""

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        return divided(batch, self.partition_by)

    def folder_of(self, values: Values) -> str:
        return folder_of(self.partition_by, values)

    def with_statistics(self, schema: pa.Schema) -> Sequence[str]:
        return schema.names[:STATISTICS_MAX] if self.columns is None else self.columns

    def values_in(self, kept: Mapping[str, Any]) -> Values | None:
        partition = kept["partition"]
        is_own = partition.keys() == set(self.partition_by)
        return tuple(partition[name] for name in self.partition_by) if is_own else None

    def kept(self, values: Values, statistics: Statistics) -> Mapping[str, Any]:
        partition = dict(zip(self.partition_by, values, strict=True))
        return {"partition": partition, "statistics": as_json(statistics)}


@dataclass(frozen=True)
class DeltaTableFacts:
    """The table as of a start."""

    columns: Columns
    partition_by: tuple[str, ...]
    with_statistics: tuple[str, ...]
    """Columns that readers expect statistics of."""

    @classmethod
    def of(cls, log: TableLog) -> DeltaTableFacts:
        columns, by = log.columns(), log.partition_by
        expected = tuple(name for name in columns.types if name not in by)
        properties = log.properties
        is_chosen = any(name.startswith(_CHOICE) for name in properties)
        return cls(columns, by, expected if is_chosen else expected[:STATISTICS_MAX])


def data_file_of(artifact: Artifact) -> DataFile:
    """Returns the file for the table's log."""
    kept = kept_in(artifact)
    return DataFile(artifact.target, artifact.bytes, kept["partition"], kept["statistics"])


def columns_in(url: str, options: StorageOptions, path: str) -> pa.Schema:
    """Returns the columns of a data file, by its footer.

    Raises:
        OSError: it cannot be read.
    """
    place, whole = open_input(url, options), f"{url}/{path}"
    found = place.find(whole)
    if found is None:
        raise FileNotFoundError(whole)
    with place.open(found) as file:
        return pq.read_schema(file)
