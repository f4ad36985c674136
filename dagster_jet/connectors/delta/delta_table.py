"""Delta Lake table to enrich a stream with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.delta.delta_source import DeltaSource
from dagster_jet.connectors.delta.table_changes import contents_of
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.lake.added_rows import are_there, whole_frame_of
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.contract import VersionedTable
from dagster_jet.errors import SourceError, SourceUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class DeltaTable(VersionedTable):
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

    def newest(self) -> dict[str, Any]:
        log = self.source.opened(*self.stage, self.version)
        return {"id": log.id, "version": log.version}

    def frame_at(self, spark: SparkSession, version: dict[str, Any]) -> DataFrame | None:
        """Tasks read the rows of the version's files."""
        newest, number = self.source.opened(*self.stage, self.version), int(version["version"])
        log = newest if number == newest.version else self._earlier(newest, number)
        if log is None or newest.id != version["id"]:
            return None
        url, storage = self.source.url, self.source.storage_options
        files = contents_of(log)
        if log is not newest and not are_there(url, storage, files):
            return None
        read = TableRead(url, url, "latest", False, storage, newest.ddl())
        return whole_frame_of(spark, read, files, self.stage[1])

    def _earlier(self, newest: TableLog, version: int) -> TableLog | None:
        if version > newest.version:
            return None  # the log was replaced by an older copy
        try:
            return self.source.opened(*self.stage, version)
        except SourceUnavailableError:
            raise
        except SourceError:
            return None  # it was removed from the log
