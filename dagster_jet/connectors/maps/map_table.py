"""A map as a batch table to enrich a stream with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_jet.connectors.maps.entries import MapEntriesSource
from dagster_jet.connectors.maps.entry_columns import existing
from dagster_jet.contract import Table
from dagster_jet.core.ddl import quoted_name
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class MapTable(Table):
    """Entries of a map as rows: the key as `key_column`, then the value.

    A JSON object (`value_schema` with several columns) becomes those columns, any other value the
    column `value`. Each partition is read in its current state.
    """

    map: str
    key_column: str = "key"
    value_schema: str | None = None
    bound: MapEntriesSource | None = field(default=None, compare=False, repr=False)

    def describe(self) -> dict[str, str]:
        return {"kind": "map", "map": self.map}

    def with_store(self, store: Store) -> MapTable:
        source = MapEntriesSource(self.map, self.value_schema).with_store(store)
        return replace(self, bound=source)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns all entries.

        Raises:
            SourceError: the map does not exist.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        assert self.bound is not None, "the engine puts it on the job's store first"
        reader = self.bound.open("", self.map, None)
        existing(reader.map.log.read_applied(), "", self.map, self.map)
        partitions = range(reader.map.partition_count)
        rows = reader.frame(spark, partitions).rows.withColumnRenamed("key", self.key_column)
        if isinstance(rows.schema["value"].dataType, StructType):
            return rows.select(F.col(quoted_name(self.key_column)), "value.*")
        return rows

    def locate_bad_row(self, spark: SparkSession) -> str | None:
        """Returns key and text of a value that does not fit, best effort."""
        assert self.bound is not None
        reader = self.bound.open("", self.map, None)
        return reader.locate_bad_row(spark, range(reader.map.partition_count))
