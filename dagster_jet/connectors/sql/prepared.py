"""Prepared transactions, as PostgreSQL and MariaDB have them: any connection ends them by name.

Both keep a prepared transaction when its connection ends and when the server starts again. What a
server gives is tried out by `tests/integration/connectors/test_sql_held.py` on the real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dagster_jet.connectors.sql.place import is_mysql, is_postgres, sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

_UNKNOWN_STATE, _UNKNOWN_NUMBER = "42704", 1397


class Prepared(Protocol):
    """Statements of one kind of database. Names have no quotes in them. Connections commit by
    themselves outside these transactions."""

    def begin(self, connection: Connection, name: str) -> None: ...

    def prepare(self, connection: Connection, name: str) -> None:
        """After it nothing of the transaction depends on this connection; close it."""
        ...

    def give_up(self, connection: Connection, name: str) -> None:
        """Of a transaction that is not prepared yet."""
        ...

    def commit(self, connection: Connection, name: str) -> bool:
        """False: no transaction of this name is prepared."""
        ...

    def roll_back(self, connection: Connection, name: str) -> bool:
        """False: no transaction of this name is prepared."""
        ...

    def listed(self, connection: Connection, beginning: str) -> list[str]:
        """Names with this beginning that the server lists; it may leave some out."""
        ...

    def problem(self, connection: Connection, wanted: int) -> str | None:
        """Why so many transactions cannot be prepared here at the same time."""
        ...


def prepared_transactions(connection: Connection) -> Prepared | None:
    """None: this kind of database has none that outlive their connection."""
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

    def problem(self, connection: Connection, wanted: int) -> str | None:
        most = int(connection.exec_driver_sql("show max_prepared_transactions").scalar() or 0)
        if most >= wanted:
            return None
        is_off = " (prepared transactions are off, as PostgreSQL comes)" if most == 0 else ""
        return (
            f"max_prepared_transactions is {most}{is_off}, and this sink alone holds up to "
            f"{wanted}: set it in postgresql.conf and restart the server"
        )


class MariaPrepared:
    """XA. MariaDB before 10.6, which is not supported, ends it with its connection."""

    def begin(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"xa start '{name}'")

    def prepare(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"xa end '{name}'")
        connection.exec_driver_sql(f"xa prepare '{name}'")
        # Closed as it is: it can do nothing more, not even roll back nothing.
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

    def problem(self, connection: Connection, wanted: int) -> str | None:
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
