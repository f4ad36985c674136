"""A table's log, through the package `deltalake`: versions, columns, and the markers of sinks.

A marker is an application transaction: the log keeps the newest version per application id, also in
its checkpoints. The library accepts an append whose transaction is in the log already, and one that
is older. So whoever commits reads the table first, and commits on that version only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.delta.columns import Columns, columns_of
from dagster_jet.connectors.lake.folding import IS_GONE, Folded
from dagster_jet.connectors.lake.lake_committer import first_line
from dagster_jet.connectors.owned_rows import OwnedRows
from dagster_jet.connectors.type_ddl import type_ddl
from dagster_jet.core.ddl import quoted_name
from dagster_jet.core.library import library
from dagster_jet.errors import (
    ConfigurationError,
    JetError,
    SinkError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.system.transient import DENIED, is_transient

_NOTHING_LOST = "Nothing is lost: what is staged is committed then."

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

CLEANED_EVERY = 100
"""Versions from one removal of expired log files to the next."""


@dataclass(frozen=True)
class DataFile:
    """A data file to be added to a table."""

    path: str
    """Path in the table's folder."""
    bytes: int
    partition: Mapping[str, str | None]
    statistics: str
    """JSON, as the log keeps it."""


@dataclass
class TableLog:
    """The log as of the last look at it."""

    table: DeltaTable

    @classmethod
    def open(
        cls, url: str, options: Mapping[str, str], version: int | None = None
    ) -> TableLog | None:
        """Returns the log at a version, by default its newest; None if there is no table.

        Raises:
            DeltaError, OSError: it cannot be read.
        """
        library = delta_library()
        try:
            return cls(library.DeltaTable(url, version, storage_options=dict(options)))
        except library.exceptions.TableNotFoundError:
            return None

    @classmethod
    def create(
        cls,
        url: str,
        options: Mapping[str, str],
        columns: Columns,
        partition_by: Sequence[str],
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Creates the table, unless there is one."""
        library = delta_library()
        library.DeltaTable.create(
            url,
            library.Schema.from_json(columns.as_json()),
            mode="ignore",
            partition_by=list(partition_by),
            configuration=dict(properties or {}),
            storage_options=dict(options),
        )

    def add_columns(self, columns: Columns) -> None:
        """Adds columns, which are null in the rows that are there.

        Raises:
            DeltaError: another writer has changed the columns meanwhile.
        """
        schema = delta_library().Schema.from_json(columns.as_json())
        self.table.alter.add_columns(schema.fields)

    def look(self) -> bool:
        """Goes on to the newest version; False if that fails, so that the log is opened anew."""
        try:
            self.table.update_incremental()
            self.marker("")  # an update of a table that is gone finds nothing new
        except Exception:  # noqa: BLE001 - opening it says what is wrong
            return False
        return True

    @property
    def version(self) -> int:
        return self.table.version()

    @property
    def id(self) -> str:
        """Identifies the table: another one at the same place has another id."""
        return str(self.table.metadata().id)

    def marker(self, application: str) -> int:
        """Returns the newest transaction of an application; -1 before its first."""
        found = self.table.transaction_version(application)
        return -1 if found is None else found

    def columns(self) -> Columns:
        return columns_of(self.table.schema())

    def ddl(self) -> str:
        """Returns the columns as DDL.

        Raises:
            ConfigurationError: Spark has no type for one of them.
        """
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            fields = StructType.fromJson(json.loads(self.table.schema().to_json())).fields
        except PySparkException as error:
            raise ConfigurationError(
                f"Spark has no type for a column of the table: {first_line(error)}."
            ) from error
        return ", ".join(f"{quoted_name(one.name)} {type_ddl(one.dataType)}" for one in fields)

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self.table.metadata().partition_columns)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.table.metadata().configuration

    def paths(self) -> set[str]:
        """Returns the paths of the current version's data files."""
        actions = pa.table(self.table.get_add_actions())
        return set(actions.column("path").to_pylist())

    def append(
        self, files: Sequence[DataFile], application: str, marker: int, facts: Mapping[str, str]
    ) -> None:
        """Commits files and marker together, on the version that was read. The library goes on to
        later versions, unless one of them has a transaction of this application.

        Whether it has committed is seen in the log only: an error does not say that it has not.

        Args:
            facts: shown in the table's history.
        """
        import deltalake
        from deltalake.transaction import AddAction

        properties = _properties(application, marker, facts)
        schema = self.table.schema()
        if not files:  # a transaction without actions is not committed
            rows = pa.schema(schema).empty_table()
            deltalake.write_deltalake(
                self.table,
                rows,
                mode="append",
                commit_properties=properties,
                post_commithook_properties=self._afterwards(),
            )
            return
        adds: list[Any] = [
            AddAction(file.path, file.bytes, dict(file.partition), 0, True, file.statistics)
            for file in files
        ]
        self.table.create_write_transaction(
            adds,
            "append",
            schema,
            list(self.partition_by),
            commit_properties=properties,
            post_commithook_properties=self._afterwards(),
        )

    def _afterwards(self) -> PostCommitHookProperties:
        """Returns what the library does behind a commit. By default each commit looks at all files
        of the log, whether they have expired: with 10,000 of them that takes most of its time."""
        import deltalake

        is_due = (self.version + 1) % CLEANED_EVERY == 0
        return deltalake.PostCommitHookProperties(cleanup_expired_logs=None if is_due else False)

    def delete(self, rows: OwnedRows) -> None:
        """Removes all rows with these values, on the version that was read.

        Raises:
            DeltaError: another writer has removed one of their files meanwhile.
        """
        self.table.delete(_condition(rows))

    def replace(
        self,
        rows: pa.Table,
        former: OwnedRows,
        application: str,
        marker: int,
        facts: Mapping[str, str],
    ) -> None:
        """Removes the rows with these values and adds others, with the marker, on the version that
        was read. As of `append`, an error does not say that it has not committed.

        Args:
            facts: shown in the table's history.
        """
        import deltalake

        deltalake.write_deltalake(
            self.table,
            rows,
            mode="overwrite",
            predicate=_condition(former),
            commit_properties=_properties(application, marker, facts),
            post_commithook_properties=self._afterwards(),
        )

    def merge(
        self,
        changes: Folded,
        key: Sequence[str],
        application: str,
        marker: int,
        facts: Mapping[str, str],
    ) -> None:
        """Applies changes by a MERGE with the marker, on the version that was read. Any commit that
        another writer makes meanwhile lets it fail.

        Args:
            facts: shown in the table's history.
        """
        before, rows = self.version, changes.rows
        values = {f"`{n}`": f"changes.`{n}`" for n in rows.schema.names if n != IS_GONE}
        merger = (
            self.table.merge(
                rows,
                " AND ".join(f"rows.`{name}` = changes.`{name}`" for name in key),
                source_alias="changes",
                target_alias="rows",
                commit_properties=_properties(application, marker, facts),
                post_commithook_properties=self._afterwards(),
            )
            .when_matched_delete(f"changes.`{IS_GONE}`")
            .when_matched_update(values)
            .when_not_matched_insert(values, f"NOT changes.`{IS_GONE}`")
        )
        if changes.begins_empty:
            merger = merger.when_not_matched_by_source_delete()
        merger.execute()
        if self.version == before:  # nothing to change, so the library has committed no marker
            self.append([], application, marker, facts)


class NextLog(TableLog):
    """A log with exactly one newer version, which is known without reading it."""

    @property
    def version(self) -> int:
        return super().version + 1


def _condition(rows: OwnedRows) -> str:
    return " AND ".join(f"`{name}` = {_literal(value)}" for name, value in rows)


def _literal(value: str | int | bool) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def _properties(application: str, marker: int, facts: Mapping[str, str]) -> CommitProperties:
    import deltalake

    return deltalake.CommitProperties(
        custom_metadata=dict(facts),
        app_transactions=[deltalake.Transaction(application, marker)],
    )


def delta_library() -> Any:
    """Returns the package. Raises `MissingEnvironmentError`."""
    return library(
        "deltalake", "dagster-jet[delta]", "Delta Lake tables need the package 'deltalake'"
    )


@contextmanager
def errors_named(
    url: str, job: str, stage: str, *, is_start: bool = False, what_then: str = _NOTHING_LOST
) -> Iterator[None]:
    """Converts errors of the library and of the place.

    Args:
        what_then: what happens when they are over.

    Raises:
        SinkUnavailableError: the place does not answer as it should; the call may be repeated.
        SinkError: the place does not exist, or the library cannot use the table's log.
        ConfigurationError: access is denied, and this is a start.
    """
    library = delta_library()
    try:
        yield
    except OSError as error:
        kind: type[JetError] = SinkUnavailableError if is_transient(error) else SinkError
        raise (ConfigurationError if is_start and error.errno in DENIED else kind)(
            f"the table {url!r} is unavailable: {first_line(error)}.",
            job=job,
            stage=stage,
            cure=f"Bring the place back, or correct credentials and permissions. {what_then}",
        ) from error
    except library.exceptions.DeltaError as error:
        raise SinkError(
            f"the log of the table {url!r} cannot be used: {first_line(error)}.",
            job=job,
            stage=stage,
            cure=f"Repair the table. {what_then}",
        ) from error


@contextmanager
def reading_errors_named(url: str, job: str, stage: str) -> Iterator[None]:
    """Converts errors of the library and of the place, for a source.

    Raises:
        SourceUnavailableError: the place does not answer as it should; the call may be repeated.
        SourceError: the place does not exist, or the library cannot use the table's log.
    """
    library = delta_library()
    try:
        yield
    except (OSError, library.exceptions.DeltaError) as error:
        is_away = isinstance(error, OSError) and is_transient(error)
        raise (SourceUnavailableError if is_away else SourceError)(
            f"the table {url!r} cannot be read: {first_line(error)}.",
            job=job,
            stage=stage,
            cure="Bring the place back, or correct credentials and permissions.",
        ) from error
