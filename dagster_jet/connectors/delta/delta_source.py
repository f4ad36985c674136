"""Delta Lake table as a source: the rows that each version adds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from dagster_jet.connectors.delta.change_feed import COLUMNS, has_feed, no_feed
from dagster_jet.connectors.delta.delta_reader import DeltaReader
from dagster_jet.connectors.delta.delta_sink import DeltaSink
from dagster_jet.connectors.delta.fitness import unreadable
from dagster_jet.connectors.delta.log_folder import check_place, options_of
from dagster_jet.connectors.delta.table_log import TableLog, delta_library, reading_errors_named
from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.places.location import StorageOptions, absolute, storage_options
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.table_read import TableRead, check_reading
from dagster_jet.contract import BadRowRule, Sink, Source
from dagster_jet.errors import ConfigurationError, PipelineError, SourceError


@dataclass(frozen=True)
class DeltaSource(Source):
    """Reads a Delta Lake table by version."""

    url: str
    start: str | int | datetime = "earliest"
    deletes: str = "stop"
    storage_options: StorageOptions = ()
    shared: bool = field(default=False, compare=False, repr=False)
    """Whether a local folder is shared by all machines of a cluster."""
    schema: str | None = field(default=None, compare=False)
    """Columns as DDL, as of the start."""
    changes: bool = False
    """Whether it reads the change data feed."""

    def __post_init__(self) -> None:
        delta_library()
        object.__setattr__(self, "url", absolute(self.url))
        options = storage_options(self.url, dict(self.storage_options))
        object.__setattr__(self, "storage_options", options)
        check_place(self.url)
        check_reading(self.start, self.deletes, "a version")
        if self.changes and self.deletes != "stop":
            raise ConfigurationError(
                f"deletes: {self.deletes!r} does not go with changes=True, which reads deletions.",
                cure="Leave deletes out.",
            )

    def describe(self) -> dict[str, str]:
        described = {"kind": "delta", "path": self.url, "start": str(self.start)}
        return described | ({"changes": "true"} if self.changes else {"deletes": self.deletes})

    def row_schema(self) -> str:
        if self.schema is None:
            raise PipelineError(f"the columns of the table {self.url!r} are known at the start.")
        return self.schema

    def reads_output_of(self, sink: Sink) -> bool:
        return isinstance(sink, DeltaSink) and sink.url == self.url

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> DeltaSource:
        """Reads the table's columns."""
        check_reachable(self.url, job, stage, is_reachable=on_one_host or self.shared)
        log = self.opened(job, stage)
        columns = log.ddl()
        if self.changes:
            if not has_feed(log.properties):
                raise no_feed(self.url, log.version, job, stage)
            columns = f"{columns}, {COLUMNS}"
        return replace(self, schema=columns)

    def opened(self, job: str, stage: str, version: int | None = None) -> TableLog:
        """Returns the log at a version, by default its newest.

        Raises:
            SourceError: there is no such table, or no such version.
            ConfigurationError: the table's files cannot be read.
        """
        with reading_errors_named(self.url, job, stage):
            options = options_of(data_folder(self.url, self.storage_options))
            log = TableLog.open(self.url, options, version)
        if log is None:
            raise SourceError(
                f"there is no table {self.url!r}.",
                job=job,
                stage=stage,
                cure="Create it, or correct the path.",
            )
        if why := unreadable(log):
            raise ConfigurationError(
                f"the table {self.url!r} cannot be read: {why}.", job=job, stage=stage
            )
        return log

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> DeltaReader:
        """No row is bad: columns have types."""
        skips, options = self.deletes == "skip", self.storage_options
        table = TableRead(self.url, self.url, self.start, skips, options, self.row_schema())
        return DeltaReader(table, job, stage, reads_changes=self.changes)
