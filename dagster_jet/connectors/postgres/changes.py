"""Changes of a table as an exactly-once source, from a logical replication slot.

The slot keeps the log until it is advanced. A poll only peeks. The snapshot contains the position,
and phase 2 advances the slot to it. So the server drops no log that is not in a snapshot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_jet.connectors.change_columns import change_columns
from dagster_jet.connectors.postgres import change_rows
from dagster_jet.connectors.postgres.changes_reader import ChangesReader
from dagster_jet.connectors.postgres.published_table import PublishedTable, published_tables
from dagster_jet.connectors.postgres.server import Server, server_of
from dagster_jet.connectors.sql.failures import as_source_errors
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.contract import BadRowRule, Source
from dagster_jet.core.secret import Secret, refuse_written_out, shown
from dagster_jet.errors import ConfigurationError, PipelineError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True)
class Found:
    """The published table and the server, at a start or for a plan."""

    table: PublishedTable
    server: Server


@dataclass(frozen=True)
class ChangesSource(Source):
    """Reads the changes of the only table of a publication."""

    can_peek = False  # `open` creates a slot that does not exist, which keeps the server's log
    place: SqlPlace
    """Its table, in messages, is the publication."""
    slot: str
    publication: str
    renamed: tuple[tuple[str, str | None], ...] = ()
    """(former name, current name or None for a dropped column)."""
    found: Found | None = field(default=None, compare=False, repr=False)
    """Result of `at_start`."""
    asset_key: tuple[str, ...] = ()
    """Asset that the source reads, if the orchestrator knows it; else ()."""

    def __post_init__(self) -> None:
        refuse_written_out(self.place.url, "url")
        if not self.publication:
            raise ConfigurationError("publication: it is empty.")
        if not _SLOT_NAME.fullmatch(self.slot):
            raise ConfigurationError(
                f"slot: {self.slot!r} is not a valid name of a slot.",
                cure="Use lower-case letters, digits and underscores, at most 63 of them.",
            )
        if not isinstance(self.place.url, Secret):
            family = self.place.parsed().get_backend_name()
            if family != "postgresql":
                raise ConfigurationError(f"url: {family} has no logical replication slots.")

    def describe(self) -> dict[str, str]:
        return {
            "kind": "postgres_changes",
            "url": shown(self.place.url),
            "slot": self.slot,
            "publication": self.publication,
        }

    def row_schema(self) -> str:
        """Columns as DDL."""
        if self.found is None:
            raise PipelineError(
                "the columns of a publication are known only when a job starts.",
                cure="Plan the pipeline with Jet.plan.",
            )
        return change_rows.schema(self.found.table)

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> ChangesSource:
        """Reads the table's columns. It changes nothing: `Jet.plan` calls it, too."""
        with as_source_errors(self.place, job, stage), self.place.connected() as connection:
            return replace(self, found=self._find(connection, job, stage))

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> ChangesReader:
        """Creates the slot if it does not exist.

        A crash after that leaves the slot, which the next start reads from.
        """
        with as_source_errors(self.place, job, stage), self.place.connected() as connection:
            found = self.found or self._find(connection, job, stage)
            made_slot = self._make_slot(connection, job, stage)
            asked = (
                "select cast(confirmed_flush_lsn as text) from pg_replication_slots "
                "where slot_name = :slot"
            )
            # A lost slot has no position; the first poll reports it.
            begins = connection.execute(sqlalchemy().text(asked), {"slot": self.slot}).scalar()
        return ChangesReader(
            self.place,
            self.slot,
            self.publication,
            found.table,
            dict(self.renamed),
            found.server,
            made_slot,
            bad_rows,
            job,
            stage,
            _whole=change_rows.lsn_of(begins or "0/0"),
        )

    def _find(self, connection: Connection, job: str, stage: str) -> Found:
        server = server_of(connection, job, stage)
        table = self._table(connection, job, stage)
        self._check_server(connection, job, stage)
        return Found(table, server)

    def _table(self, connection: Connection, job: str, stage: str) -> PublishedTable:
        tables = published_tables(connection, self.publication)
        if len(tables) != 1:
            names = ", ".join(table.name for table in tables)
            has = f"has {len(tables)} tables: {names}" if tables else "has no table"
            raise ConfigurationError(
                f"the publication {self.publication!r} {has}, or does not exist.",
                job=job,
                stage=stage,
                cure="Make one for one table: create publication p for table t; for a partitioned "
                "table: ... with (publish_via_partition_root = true).",
            )
        table = tables[0]
        lower = [name.lower() for name in (*change_columns(()), *table.names)]
        twice = sorted({name for name in lower if lower.count(name) > 1})
        if twice or not table.columns:
            has = "publishes no column"
            if twice:
                has = (
                    f"has columns whose names are taken, by the source or by another column (Spark "
                    f"does not look at the case): {', '.join(twice)}"
                )
            raise ConfigurationError(
                f"the table {table.name} {has}.",
                job=job,
                stage=stage,
                cure="Publish other columns only: for table t (a, b).",
            )
        strange = [name for pair in self.renamed if (name := pair[1]) and name not in table.names]
        if strange:
            raise ConfigurationError(
                f"renamed: the table {table.name} has no column {', '.join(strange)}.",
                job=job,
                stage=stage,
                cure=f"It has {', '.join(table.names)}; what is gone is None.",
            )
        return table

    def _check_server(self, connection: Connection, job: str, stage: str) -> None:
        level = connection.exec_driver_sql("show wal_level").scalar()
        if level != "logical":
            raise ConfigurationError(
                f"wal_level is {level} at {shown(self.place.url)}.",
                job=job,
                stage=stage,
                cure="Set wal_level = logical in postgresql.conf and restart the server.",
            )
        if connection.exec_driver_sql("show server_encoding").scalar() == "SQL_ASCII":
            raise ConfigurationError(
                f"the database at {shown(self.place.url)} has the encoding SQL_ASCII, so the "
                "encoding of its texts is not known.",
                job=job,
                stage=stage,
                cure="Copy it into a database with an encoding, such as UTF8.",
            )

    def _make_slot(self, connection: Connection, job: str, stage: str) -> bool:
        """Returns True if the slot did not exist."""
        alchemy = sqlalchemy()
        asked = alchemy.text(
            "select plugin, database from pg_replication_slots where slot_name = :s"
        )
        row = connection.execute(asked, {"s": self.slot}).one_or_none()
        here = connection.exec_driver_sql("select current_database()").scalar()
        if row is not None and tuple(row) != ("pgoutput", here):
            raise ConfigurationError(
                f"the slot {self.slot!r} is one of {row[0]} in the database {row[1]!r}.",
                job=job,
                stage=stage,
                cure="Name another slot. A slot that does not exist is created.",
            )
        connection.rollback()  # a transaction that has written cannot create a slot
        if row is None:
            made = alchemy.text("select pg_create_logical_replication_slot(:s, 'pgoutput')")
            connection.execute(made, {"s": self.slot})
            connection.commit()
        return row is None
