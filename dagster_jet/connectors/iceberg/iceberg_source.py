"""Iceberg table as a source: the rows that each snapshot adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.iceberg.catalog import (
    CatalogPlace,
    iceberg_library,
    reading_errors_named,
)
from dagster_jet.connectors.iceberg.iceberg_reader import IcebergReader
from dagster_jet.connectors.iceberg.iceberg_sink import IcebergSink, checked_storage, checked_table
from dagster_jet.connectors.iceberg.storage import place_of
from dagster_jet.connectors.iceberg.table_version import TableVersion
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.connectors.lake.table_read import TableRead, check_reading
from dagster_jet.contract import BadRowRule, Sink, Source
from dagster_jet.errors import ConfigurationError, PipelineError, SourceError
from dagster_jet.store import Store


@dataclass(frozen=True)
class TableColumns:
    """The table as of a start."""

    url: str
    schema: str
    """Columns as DDL."""
    names: Mapping[int, str]
    """`TableRead.names`."""

    @classmethod
    def of(cls, version: TableVersion) -> TableColumns:
        """Raises `ConfigurationError`: Spark has no type for a column."""
        location = version.metadata.location
        return cls(place_of(location) or location, version.ddl(), version.names_by_id())


@dataclass(frozen=True)
class IcebergSource(Source):
    """Reads an Iceberg table by snapshot."""

    catalog: CatalogPlace
    table: str
    """Namespace and name: "lake.flights"."""
    start: str | int | datetime = "earliest"
    deletes: str = "stop"
    branch: str = "main"
    has_tag: bool = True
    storage_options: StorageOptions = ()
    shared: bool = field(default=False, compare=False, repr=False)
    """Whether a local folder is shared by all machines of a cluster."""
    home: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """Store id, and the namespace in the store."""
    found: TableColumns | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        iceberg_library()
        object.__setattr__(self, "storage_options", checked_storage(self.storage_options))
        checked_table(self.table)
        check_reading(self.start, self.deletes, "the id of a snapshot")

    def describe(self) -> dict[str, str]:
        described = {
            "kind": "iceberg",
            "path": self.url,
            "start": str(self.start),
            "deletes": self.deletes,
        }
        return described if self.branch == "main" else {**described, "branch": self.branch}

    @property
    def name(self) -> str:
        return f"{self.catalog.name}.{self.table}"

    @property
    def url(self) -> str:
        return self.catalog.url_of(self.table, self.branch)

    def row_schema(self) -> str:
        if self.found is None:
            raise PipelineError(f"the columns of the table {self.name!r} are known at the start.")
        return self.found.schema

    def reads_output_of(self, sink: Sink) -> bool:
        return isinstance(sink, IcebergSink) and (sink.catalog, sink.table, sink.branch) == (
            self.catalog,
            self.table,
            self.branch,
        )

    def with_store(self, store: Store) -> IcebergSource:
        """Only records the namespace, within which names of jobs are unique; stores nothing."""
        return replace(self, home=(store.store_id, store.config.namespace))

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> IcebergSource:
        """Reads the table's columns."""
        with self.opened(job, stage) as version:
            found = TableColumns.of(version)
            check_reachable(found.url, job, stage, is_reachable=on_one_host or self.shared)
            return replace(self, found=found)

    @contextmanager
    def opened(self, job: str, stage: str) -> Iterator[TableVersion]:
        """Opens the newest version.

        Raises:
            SourceError: there is no such table.
            ConfigurationError: the table's files cannot be read.
        """
        with (
            reading_errors_named(self.name, job, stage),
            closing(self.catalog.open(self.storage_options)) as catalog,
        ):
            version = TableVersion.open(catalog, self.table, self.branch)
            if version is None:
                raise SourceError(
                    f"there is no table {self.name!r}.",
                    job=job,
                    stage=stage,
                    cure="Create it, or correct its name.",
                )
            why, location = version.unreadable(), version.metadata.location
            if why is None and place_of(location) is None:
                why = f"its files are at {location!r}"
            if why is not None:
                raise ConfigurationError(
                    f"the table {self.name!r} cannot be read: {why}.", job=job, stage=stage
                )
            yield version

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> IcebergReader:
        """No row is bad: columns have types."""
        schema, found, skips = self.row_schema(), self.found, self.deletes == "skip"
        assert found is not None
        storage = self.storage_options
        read = TableRead(self.name, found.url, self.start, skips, storage, schema, found.names)
        tag = Owner(*self.home, job, stage).application(repeatable=False)
        named = tag if self.has_tag else None
        return IcebergReader(
            read, job, stage, table=self.table, catalog=self.catalog, branch=self.branch, tag=named
        )
