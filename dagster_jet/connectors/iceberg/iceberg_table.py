"""Iceberg table to enrich a stream with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.iceberg.iceberg_source import IcebergSource, TableColumns
from dagster_jet.connectors.iceberg.table_snapshots import TableSnapshots
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.added_rows import are_there, whole_frame_of
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.contract import VersionedTable
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class IcebergTable(VersionedTable):
    """A table as of one snapshot, or as of its branch's newest one whenever it is read."""

    source: IcebergSource
    snapshot: int | None = None
    asset_key: tuple[str, ...] = ()
    """Asset key of this table in an orchestrator; () if none."""
    stage: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """Job and stage, named in errors."""

    def describe(self) -> dict[str, str]:
        described = {"kind": "iceberg", "path": self.source.url}
        return described if self.snapshot is None else {**described, "snapshot": str(self.snapshot)}

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> IcebergTable:
        source = self.source.at_start(job, stage, on_one_host=on_one_host)
        return replace(self, source=source, stage=(job, stage))

    def newest(self) -> dict[str, Any]:
        with self.source.opened(*self.stage) as newest:
            id = newest.snapshot_id if self.snapshot is None else self.snapshot
            if id is not None and newest.metadata.snapshot_by_id(id) is None:
                raise SourceError(
                    f"the table {self.source.name!r} has no snapshot {id}.",
                    job=self.stage[0],
                    stage=self.stage[1],
                    cure="Name another one: it may have expired. A tag of the table keeps one.",
                )
            return {"id": newest.id, "snapshot": id}

    def frame_at(self, spark: SparkSession, version: dict[str, Any]) -> DataFrame | None:
        """Tasks read the rows of the snapshot's files.

        Raises:
            SourceError: it has files that delete rows.
        """
        source, stage, storage = self.source, self.stage[1], self.source.storage_options
        with source.opened(*self.stage) as newest:
            id, metadata = version["snapshot"], newest.metadata
            snapshot = None if id is None else metadata.snapshot_by_id(id)
            if newest.id != version["id"] or (snapshot is None and id is not None):
                return None
            is_named = snapshot is not None and self.snapshot is not None
            found = TableColumns.of(_with_columns_of(snapshot, newest) if is_named else newest)
            read = TableSnapshots(newest, found.names, False, source.name, *self.stage)
            files = [] if snapshot is None else read.contents(snapshot)
            if id != newest.snapshot_id and not are_there(found.url, storage, files):
                return None
        table = TableRead(
            source.name, found.url, "latest", False, storage, found.schema, found.names
        )
        return whole_frame_of(spark, table, files, stage)


def _with_columns_of(snapshot: Any, version: TableVersion) -> TableVersion:
    """Returns the version with the columns that the table had then."""
    from pyiceberg.table import Table as LibraryTable

    table, then = version.table, snapshot.schema_id
    if then is None:
        return version
    metadata: Any = version.metadata.model_copy(update={"current_schema_id": then})
    view = LibraryTable(table.name(), metadata, table.metadata_location, table.io, table.catalog)
    return TableVersion(view, version.branch)
