"""Delta Lake table to enrich a stream with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_jet.connectors.delta.delta_source import DeltaSource, ddl_of
from dagster_jet.connectors.delta.table_changes import contents_of
from dagster_jet.connectors.lake.added_rows import whole_frame_of
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.contract import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class DeltaTable(Table):
    """A table as of one version, or as of the newest one whenever it is read."""

    source: DeltaSource
    version: int | None = None
    asset_key: tuple[str, ...] = ()
    """Asset key of this table in an orchestrator; () if none."""
    stage: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """Job and stage, named in errors."""

    def describe(self) -> dict[str, str]:
        described = {"kind": "delta", "path": self.source.url}
        return described if self.version is None else {**described, "version": str(self.version)}

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> DeltaTable:
        source = self.source.at_start(job, stage, on_one_host=on_one_host)
        return replace(self, source=source, stage=(job, stage))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Tasks read the rows of the version's files."""
        url, log = self.source.url, self.source.opened(*self.stage, self.version)
        read = TableRead(url, url, "latest", False, self.source.storage_options, ddl_of(log))
        return whole_frame_of(spark, read, contents_of(log), self.stage[1])
