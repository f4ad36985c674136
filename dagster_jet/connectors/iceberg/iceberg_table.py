"""Iceberg table to enrich a stream with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.iceberg.iceberg_source import IcebergSource, TableColumns
from dagster_jet.connectors.iceberg.table_snapshots import TableSnapshots
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.added_rows import whole_frame_of
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.contract import Table
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class IcebergTable(Table):
    """A table as of one snapshot, or as of its branch's newest one whenever it is read."""

    source: IcebergSource
    snapshot: int | None = None
    asset_key: tuple[str, ...] = ()
    """Asset key of this table in an orchestrator; () if none."""
    stage: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """Job and stage, named in errors."""

    def describe(self) -> dict[str, str]:
        described = {"kind": "iceberg", "path": self.source.name}
        return described if self.snapshot is None else {**described, "snapshot": str(self.snapshot)}

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> IcebergTable:
        source = self.source.at_start(job, stage, on_one_host=on_one_host)
        return replace(self, source=source, stage=(job, stage))

    def frame(self, spark: SparkSession) -> DataFrame:
        """Tasks read the rows of the snapshot's files.

        Raises:
            SourceError: there is no such snapshot, or it has files that delete rows.
        """
        source, (job, stage) = self.source, self.stage
        with source.opened(job, stage) as newest:
            metadata = newest.metadata
            id = newest.snapshot_id if self.snapshot is None else self.snapshot
            snapshot = None if id is None else metadata.snapshot_by_id(id)
            if snapshot is None and self.snapshot is not None:
                raise SourceError(
                    f"the table {source.name!r} has no snapshot {self.snapshot}.",
                    job=job,
                    stage=stage,
                    cure="Name another one: it may have expired. A tag of the table keeps one.",
                )
            version, files = newest, []
            if snapshot is not None:
                version = newest if self.snapshot is None else _with_columns_of(snapshot, newest)
                read = TableSnapshots(version, False, source.name, job, stage)
                files = read.contents(snapshot)
            found = TableColumns.of(version)
        storage = source.storage_options
        table = TableRead(source.name, found.url, "latest", False, storage, found.schema, found.ids)
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
