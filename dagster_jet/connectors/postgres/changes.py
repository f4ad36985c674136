"""The changes of a table as a source, exactly once, from a logical replication slot.

The slot keeps the log until it is advanced. A poll only peeks; the snapshot has the position, and
phase 2 advances the slot to it. So the server forgets nothing that no snapshot has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.contract import BadRowRule
from dagster_jet.connectors.postgres.reader import ChangesReader
from dagster_jet.connectors.postgres.types import spark_type
from dagster_jet.connectors.sql.failures import as_source_errors
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.core.secret import Secret, refuse_written_out, shown
from dagster_jet.errors import ConfigurationError, PipelineError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_COLUMNS = """
select p.schemaname || '.' || p.tablename, a.attname, t.typname, a.atttypmod
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    and a.attname = any (p.attnames)
join pg_type t on t.oid = a.atttypid
where p.pubname = :publication
order by 1, a.attnum
"""


@dataclass(frozen=True)
class ChangesSource:
    """Reads what happens to the one table of a publication."""

    place: SqlPlace
    """For people its table is the publication."""
    slot: str
    publication: str
    columns: tuple[tuple[str, str, str], ...] = field(default=(), compare=False, repr=False)
    """(name, type in the database, type as DDL), as of this start."""
    table: str = field(default="", compare=False, repr=False)
    asset_key: tuple[str, ...] = ()
    """The asset that it reads, in an orchestrator that knows it; () if none."""

    def __post_init__(self) -> None:
        refuse_written_out(self.place.url, "url")
        for name, value in (("slot", self.slot), ("publication", self.publication)):
            if not value:
                raise ConfigurationError(f"{name}: it is empty.")
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

    @property
    def schema(self) -> str:
        """The columns as DDL."""
        if not self.columns:
            raise PipelineError(
                "the columns of a publication are known once a job starts.",
                cure="Plan the pipeline with Jet.plan.",
            )
        return ", ".join(["op string", *(f"`{name}` {ddl}" for name, _, ddl in self.columns)])

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> ChangesSource:
        """Asks for the columns, and makes the slot if there is none."""
        with as_source_errors(self.place, job, stage), self.place.connected() as connection:
            found = self._columns(connection, job, stage)
            connection.rollback()
            self._check_slot(connection, job, stage)
        return found

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> ChangesReader:
        known = self
        if not self.columns:
            known = self.at_start(job, stage, on_one_host=True)
        kinds: Mapping[str, pa.DataType] = {
            name: _arrow(database_type) for name, database_type, _ in known.columns
        }
        return ChangesReader(known.place, known.slot, known.publication, kinds, job, stage)

    def _columns(self, connection: Connection, job: str, stage: str) -> ChangesSource:
        asked = sqlalchemy().text(_COLUMNS)
        rows = connection.execute(asked, {"publication": self.publication}).all()
        tables = sorted({row[0] for row in rows})
        if len(tables) != 1:
            has = f"has {len(tables)} tables: {', '.join(tables)}" if tables else "has no table"
            raise ConfigurationError(
                f"the publication {self.publication!r} {has}, or does not exist.",
                job=job,
                stage=stage,
                cure="Make one for one table: create publication p for table t.",
            )
        columns = []
        for _, name, kind, modifier in rows:
            if name == "op":
                raise ConfigurationError(
                    f"the table {tables[0]} has a column op, as the source does.",
                    job=job,
                    stage=stage,
                    cure="Publish the other columns only: for table t (a, b).",
                )
            columns.append((name, f"{kind} {modifier}", spark_type(kind, modifier)[0]))
        return replace(self, columns=tuple(columns), table=tables[0])

    def _check_slot(self, connection: Connection, job: str, stage: str) -> None:
        alchemy = sqlalchemy()
        level = connection.exec_driver_sql("show wal_level").scalar()
        if level != "logical":
            raise ConfigurationError(
                f"wal_level is {level} at {shown(self.place.url)}.",
                job=job,
                stage=stage,
                cure="Set wal_level = logical in postgresql.conf and restart the server.",
            )
        asked = alchemy.text(
            "select plugin, database from pg_replication_slots where slot_name = :s"
        )
        row = connection.execute(asked, {"s": self.slot}).one_or_none()
        here = connection.exec_driver_sql("select current_database()").scalar()
        if row is None:
            made = alchemy.text("select pg_create_logical_replication_slot(:s, 'pgoutput')")
            connection.execute(made, {"s": self.slot})
            connection.commit()
        elif tuple(row) != ("pgoutput", here):
            raise ConfigurationError(
                f"the slot {self.slot!r} is one of {row[0]} in the database {row[1]!r}.",
                job=job,
                stage=stage,
                cure="Name another slot; one that does not exist is made.",
            )


def _arrow(database_type: str) -> pa.DataType:
    name, modifier = database_type.rsplit(" ", 1)
    return spark_type(name, int(modifier))[1]
