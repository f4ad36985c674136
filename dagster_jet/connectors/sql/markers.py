"""Tables of markers, beside the table that is written.

`dagster_jet_epochs` has a row per sink with the last complete epoch. The row is also the fence: a
commit locks it first, so two executions commit one after the other, and the second sees the first
one's commit. Users may read it; only sinks write it.

`dagster_jet_held` has a row per transaction that a writer has prepared (`held_rows.py`).

`dagster_jet_refused` has a row per epoch committed without rows that the table refuses, until these
rows are in the sink's dead-letter sink. It is created only if that is requested.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.sink_owner import SinkOwner
from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, sqlalchemy
from dagster_jet.errors import SinkUnavailableError

if TYPE_CHECKING:
    from sqlalchemy import Connection

EPOCHS, HELD, REFUSED = "dagster_jet_epochs", "dagster_jet_held", "dagster_jet_refused"
REPEATABLE = "repeatable"
"""Part of a row's id for epochs below exactly-once."""


@dataclass(frozen=True)
class Owner(SinkOwner):
    """Owner of epochs in a database."""

    def id(self, more: str = "") -> str:
        parts = "\0".join((self.store, self.namespace, self.job, self.sink, more))
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()

    def as_json(self) -> dict[str, str]:
        return {"store": self.store, "namespace": self.namespace}


@dataclass(frozen=True)
class Markers:
    """Marker tables, in the schema of the table that is written."""

    place: SqlPlace

    def tables(self) -> Mapping[str, Any]:
        return _tables(self.place.schema)

    def ddl(self, connection: Connection) -> dict[str, str]:
        """CREATE statement by table."""
        create = sqlalchemy().schema.CreateTable
        more = " engine=InnoDB" if is_mysql(connection) else ""
        return {
            name: str(create(table, if_not_exists=True).compile(dialect=connection.dialect)).strip()
            + more
            for name, table in self.tables().items()
        }

    def missing(self, connection: Connection, *names: str) -> list[str]:
        looked = sqlalchemy().inspect(connection)
        return [name for name in names if not looked.has_table(name, schema=self.place.schema)]

    def create(self, connection: Connection, *names: str) -> None:
        """Creates missing tables, each in a transaction of its own: in some databases DDL ends any
        transaction."""
        alchemy = sqlalchemy()
        for name in self.missing(connection, *names):
            connection.rollback()
            try:
                with connection.begin():
                    connection.exec_driver_sql(self.ddl(connection)[name])
            except alchemy.exc.DBAPIError:
                # If two processes create one table at the same time, one fails.
                connection.rollback()
                if self.missing(connection, name):
                    connection.rollback()
                    raise
        connection.rollback()


@dataclass(frozen=True)
class Fence:
    """Row of one sink in `dagster_jet_epochs`."""

    markers: Markers
    owner: Owner
    id: str

    def read(self, connection: Connection) -> tuple[int, int] | None:
        """(timeline, epoch) of the last complete epoch; None before the first."""
        return self._read(connection, lock=False)

    def ensure(self, connection: Connection) -> None:
        """Creates the row to lock if it is missing, in a transaction of its own."""
        alchemy, table = sqlalchemy(), self._table
        with connection.begin():
            if self._read(connection, lock=False) is not None:
                return
        try:
            with connection.begin():
                connection.execute(
                    table.insert().values(
                        id=self.id, job=self.owner.job, sink=self.owner.sink, timeline=0, epoch=0
                    )
                )
        except alchemy.exc.IntegrityError:
            return  # another execution was faster

    def lock(self, connection: Connection) -> tuple[int, int]:
        """(timeline, epoch) of the last complete epoch; locks the row for this transaction.

        Raises:
            SinkUnavailableError: somebody has removed the row since `ensure`; try again.
        """
        found = self._read(connection, lock=True)
        if found is None:
            raise SinkUnavailableError(
                f"the row of this sink in the table {EPOCHS} is gone.",
                job=self.owner.job,
                stage=self.owner.sink,
            )
        return found

    def move(self, connection: Connection, timeline: int, epoch: int) -> None:
        table = self._table
        connection.execute(
            table.update().where(table.c.id == self.id).values(timeline=timeline, epoch=epoch)
        )

    def remove(self, connection: Connection) -> None:
        table = self._table
        connection.execute(table.delete().where(table.c.id == self.id))

    @property
    def _table(self) -> Any:
        return self.markers.tables()[EPOCHS]

    def _read(self, connection: Connection, *, lock: bool) -> tuple[int, int] | None:
        table = self._table
        chosen = sqlalchemy().select(table.c.timeline, table.c.epoch).where(table.c.id == self.id)
        row = connection.execute(chosen.with_for_update() if lock else chosen).one_or_none()
        return None if row is None else (row[0], row[1])


@cache
def _tables(schema: str | None) -> Mapping[str, Any]:
    """Made once: a statement of a table that is made anew is compiled anew."""
    alchemy = sqlalchemy()
    types, columns = alchemy, alchemy.Column
    metadata = alchemy.MetaData()
    epochs = alchemy.Table(
        EPOCHS,
        metadata,
        columns("id", types.String(64), primary_key=True),
        columns("job", types.String(500), nullable=False),
        columns("sink", types.String(500), nullable=False),
        columns("timeline", types.BigInteger, nullable=False),
        columns("epoch", types.BigInteger, nullable=False),
        schema=schema,
    )
    held = alchemy.Table(
        HELD,
        metadata,
        columns("transaction", types.String(128), primary_key=True),
        columns("held", types.String(64), nullable=False),
        columns("job", types.String(500), nullable=False),
        columns("sink", types.String(500), nullable=False),
        columns("execution", types.BigInteger, nullable=False),
        columns("epoch", types.BigInteger, nullable=False),
        columns("is_committed", types.Boolean, nullable=False),
        schema=schema,
    )
    refused = alchemy.Table(
        REFUSED,
        metadata,
        columns("id", types.String(64), primary_key=True),
        columns("epoch", types.BigInteger, primary_key=True, autoincrement=False),
        columns("memo", types.Text, nullable=False),
        schema=schema,
    )
    return {EPOCHS: epochs, HELD: held, REFUSED: refused}
