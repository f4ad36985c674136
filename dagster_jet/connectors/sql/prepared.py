"""Prepared transactions of PostgreSQL and MariaDB, which any connection can end by name.

Both keep a prepared transaction across the end of its connection and a restart of the server.
`tests/integration/connectors/test_sql_held.py` checks this on real servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dagster_jet.connectors.sql.place import is_mysql, is_postgres, sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

_UNKNOWN_STATE, _UNKNOWN_NUMBER = "42704", 1397


@dataclass(frozen=True)
class Problem:
    """Why transactions cannot be prepared, without a full stop, and the cure as a sentence."""

    why: str
    cure: str


NO_PREPARED = Problem(
    "it has no prepared transactions that outlive their connection", "Use PostgreSQL or MariaDB."
)


class Prepared(Protocol):
    """Statements of one kind of database. Names contain no quotes. Outside these transactions the
    connections are in autocommit mode."""

    def begin(self, connection: Connection, name: str) -> None: ...

    def prepare(self, connection: Connection, name: str) -> None:
        """Prepares it. Afterwards it does not depend on this connection, which must be closed."""
        ...

    def give_up(self, connection: Connection, name: str) -> None:
        """Rolls back a transaction that is not prepared yet."""
        ...

    def commit(self, connection: Connection, name: str) -> bool:
        """Returns False if no transaction of this name is prepared."""
        ...

    def roll_back(self, connection: Connection, name: str) -> bool:
        """Returns False if no transaction of this name is prepared."""
        ...

    def listed(self, connection: Connection, beginning: str) -> list[str]:
        """Names with this prefix that the server lists; the list may be incomplete."""
        ...

    def problem(self, connection: Connection, wanted: int) -> Problem | None:
        """Why `wanted` transactions cannot be prepared at the same time; None if they can."""
        ...


def prepared_transactions(connection: Connection) -> Prepared | None:
    """Returns None if this kind of database has none that outlive their connection."""
    if is_postgres(connection):
        return PostgresPrepared()
    return MariaPrepared() if is_mysql(connection) else None


class PostgresPrepared:
    """PREPARE TRANSACTION."""

    def begin(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql("begin")

    def prepare(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"prepare transaction '{name}'")

    def give_up(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql("rollback")

    def commit(self, connection: Connection, name: str) -> bool:
        return _if_known(connection, f"commit prepared '{name}'")

    def roll_back(self, connection: Connection, name: str) -> bool:
        return _if_known(connection, f"rollback prepared '{name}'")

    def listed(self, connection: Connection, beginning: str) -> list[str]:
        asked = sqlalchemy().text(
            "select gid from pg_prepared_xacts where database = current_database() "
            "and starts_with(gid, :beginning)"
        )
        return [gid for (gid,) in connection.execute(asked, {"beginning": beginning})]

    def problem(self, connection: Connection, wanted: int) -> Problem | None:
        most = int(connection.exec_driver_sql("show max_prepared_transactions").scalar() or 0)
        if most >= wanted:
            return None
        is_off = " (prepared transactions are off, as PostgreSQL comes)" if most == 0 else ""
        return Problem(
            f"max_prepared_transactions is {most}{is_off}, and a sink alone holds up to {wanted}",
            "Set it in postgresql.conf and restart the server.",
        )


class MariaPrepared:
    """XA. MariaDB before 10.6, which is unsupported, rolls it back with its connection."""

    def begin(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"xa start '{name}'")

    def prepare(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"xa end '{name}'")
        connection.exec_driver_sql(f"xa prepare '{name}'")
        # Closed without a rollback: the connection accepts no further statement, not even that.
        connection.invalidate()

    def give_up(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"xa end '{name}'")
        connection.exec_driver_sql(f"xa rollback '{name}'")

    def commit(self, connection: Connection, name: str) -> bool:
        return _if_known(connection, f"xa commit '{name}'")

    def roll_back(self, connection: Connection, name: str) -> bool:
        return _if_known(connection, f"xa rollback '{name}'")

    def listed(self, connection: Connection, beginning: str) -> list[str]:
        names = [row[3] for row in connection.exec_driver_sql("xa recover")]
        shown = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
        return [name for name in shown if name.startswith(beginning)]

    def problem(self, connection: Connection, wanted: int) -> Problem | None:
        return None


def _if_known(connection: Connection, statement: str) -> bool:
    try:
        connection.exec_driver_sql(statement)
    except sqlalchemy().exc.DBAPIError as error:
        original = error.orig
        if getattr(original, "sqlstate", None) == _UNKNOWN_STATE:
            return False
        if original is not None and original.args and original.args[0] == _UNKNOWN_NUMBER:
            return False
        raise
    return True
