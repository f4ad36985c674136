"""Address of one database table, and connections to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.core.library import library
from dagster_jet.core.secret import Secret, Url, named, shown, text_of
from dagster_jet.errors import ConfigurationError, MissingEnvironmentError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, TableClause
    from sqlalchemy.engine import URL

CONNECT_S, LOCK_S = 10, 20
"""Time limits, in seconds, for a connection and for a lock held by others."""
IDLE_S = 120
"""Seconds after which the server ends a session that is idle in a transaction, so that a frozen
process or a stalled network does not hold the fence. MySQL has no such setting."""
ANSWER_S = 60
"""Time limit, in seconds, for MariaDB's answers while a connection is made."""
STATEMENT_S = 86_400
"""Time limit, in seconds, for a statement of MariaDB: a deletion of all rows may take hours. A dead
server is found earlier, by probes."""
KEPT_S = 60
"""Longest age, in seconds, of a connection that is used again: routers forget idle ones."""
_DRIVERS = {
    "postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql", "sqlite": "pysqlite",
}  # fmt: skip
"""Tested driver per kind of database."""
_PACKAGES = {"psycopg": "dagster-jet[postgres]", "pymysql": "pymysql"}
_MYSQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
"""Added to the server's own mode. A lax server clips numbers, truncates texts, replaces 0 in an
automatic column by its next number, and substitutes a missing engine."""
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""Options of a socket, as libpq's below: after these times a silent peer counts as dead. Not every
system has all of them."""
# Overrides formats set by server, database or role, so that texts of values can be read back.
_POSTGRES = {
    "lock_timeout": f"{LOCK_S}s",
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "lc_monetary": "C",
}


@dataclass(frozen=True)
class SqlPlace:
    """Address of the table; its repr shows no password."""

    url: Url
    table: str
    """`table` or `schema.table`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", named(self.url))
        if not self.table.strip() or self.table.count(".") > 1:
            raise ConfigurationError(
                f"table: {self.table!r} is not a valid table name.",
                cure="Use table or schema.table.",
            )
        if not isinstance(self.url, Secret):
            self.parsed()

    def __repr__(self) -> str:
        return f"SqlPlace({shown(self.url)!r}, {self.table!r})"

    @property
    def schema(self) -> str | None:
        return self.table.rpartition(".")[0] or None

    @property
    def name(self) -> str:
        return self.table.rpartition(".")[2]

    def parsed(self) -> URL:
        """URL with a driver. Raises `ConfigurationError`, without the URL, if it is not valid."""
        alchemy, text = sqlalchemy(), text_of(self.url)
        try:
            found: URL = alchemy.engine.make_url(text)
            if found.host and text.count("@") > 1:  # the host would begin inside the password
                raise ValueError
        except (alchemy.exc.ArgumentError, ValueError):
            raise ConfigurationError(
                "url: this is not a valid URL of a database.",
                cure="Use SQLAlchemy's form, such as postgresql://user@host/database, and "
                "percent-encode special characters in a password: an @ is %40.",
            ) from None
        family, _, driver = found.drivername.partition("+")
        tested = _DRIVERS.get(family)
        if tested is None or driver not in ("", tested):
            raise ConfigurationError(
                f"url: {found.drivername!r} is not supported.",
                cure="Tested are postgresql+psycopg, mariadb+pymysql and sqlite.",
            )
        return found.set(drivername=f"{family}+{tested}")

    def engine(self, *, keeps_connection: bool = False) -> Engine:
        """Creates an engine.

        Args:
            keeps_connection: it keeps one connection, which it tests before each use. SQLite's are
                opened anew: they belong to a thread.
        """
        alchemy, url = sqlalchemy(), self.parsed()
        arguments: dict[str, Any] = {}
        family = url.get_backend_name()
        pool: dict[str, Any] = {"poolclass": alchemy.pool.NullPool}
        if keeps_connection and family != "sqlite":
            pool = {
                "pool_size": 1, "max_overflow": 0, "pool_pre_ping": True, "pool_recycle": KEPT_S,
            }  # fmt: skip
        if family == "postgresql":
            arguments = {
                "connect_timeout": CONNECT_S, "tcp_user_timeout": 30_000, "keepalives_idle": 10,
                "keepalives_interval": 5, "keepalives_count": 3, "client_encoding": "UTF8",
            }  # fmt: skip
            if keeps_connection:  # PgBouncer before 1.21 mixes up statements that psycopg prepares
                arguments["prepare_threshold"] = None
        elif family in ("mysql", "mariadb"):
            arguments = {
                "connect_timeout": CONNECT_S, "read_timeout": ANSWER_S, "write_timeout": ANSWER_S,
            }  # fmt: skip
        elif family == "sqlite":
            arguments = {"timeout": 2, "isolation_level": None}
        try:
            engine: Engine = alchemy.create_engine(
                url, connect_args=arguments, hide_parameters=True, **pool
            )
        except (ImportError, alchemy.exc.NoSuchModuleError) as error:
            driver = url.drivername.rpartition("+")[2]
            raise MissingEnvironmentError(
                f"databases of the kind {url.drivername!r} need a driver: {error}.",
                cure=f"pip install '{_PACKAGES.get(driver, driver)}'",
            ) from None
        if family == "sqlite":
            alchemy.event.listen(engine, "begin", _begin_on_sqlite)
        elif family in ("mysql", "mariadb"):
            alchemy.event.listen(engine, "connect", _prepare_mysql)
        elif family == "postgresql":
            alchemy.event.listen(engine, "connect", _prepare_postgres)
        return engine

    @contextmanager
    def connected(self, *, autocommit: bool = False) -> Iterator[Connection]:
        """Opens a connection, and closes it at the end.

        Args:
            autocommit: each statement is a transaction, unless a statement begins one.
        """
        engine = self.engine()
        try:
            with engine.connect() as connection:
                if autocommit:
                    connection.execution_options(isolation_level="AUTOCOMMIT")
                yield connection
        finally:
            engine.dispose()

    def clause(self, *columns: str) -> TableClause:
        """Table for statements; values are not converted."""
        alchemy = sqlalchemy()
        found: TableClause = alchemy.table(
            self.name, *map(alchemy.column, columns), schema=self.schema
        )
        return found

    def cleansed(self, text: str) -> str:
        """Removes the URL's secrets from a message of a client library."""
        try:
            url = text_of(self.url)
            parsed = self.parsed()
        except ConfigurationError:
            return text
        text = text.replace(url, shown(self.url) if isinstance(self.url, Secret) else shown(url))
        more = (value for name, value in parsed.query.items() if "passw" in name.lower())
        for secret in (
            parsed.password,
            *more,
            url.partition("://")[2].partition("@")[0].partition(":")[2],
        ):
            text = text.replace(str(secret), "***") if secret else text
        return text


def _begin_on_sqlite(connection: Connection) -> None:
    """Takes the lock of a writer at once: the driver would do so later than required. A connection
    whose statements are transactions must hold no lock between them."""
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("begin immediate")


def is_postgres(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def is_mysql(connection: Connection) -> bool:
    return connection.dialect.name in ("mysql", "mariadb")


def quoted_table(connection: Connection, place: SqlPlace) -> str:
    """Quoted name, as a value or for people."""
    return ".".join(quoted(connection, part) for part in place.table.split("."))


def quoted(connection: Connection, name: str) -> str:
    """Quoted name of a column or a part of a table's, as a value or for people."""
    found: str = connection.dialect.identifier_preparer.quote(name)
    # SQLAlchemy doubles "%" where a driver formats statements.
    return found if connection.dialect.name == "sqlite" else found.replace("%%", "%")


def _prepare_postgres(connection: Any, record: Any) -> None:
    """Sets options by a statement, because PgBouncer refuses a connection with `options`."""
    ours = {**_POSTGRES, "idle_in_transaction_session_timeout": f"{IDLE_S}s"}
    changes = (f"set_config('{name}', '{value}', false)" for name, value in ours.items())
    connection.execute(f"select {', '.join(changes)}")
    connection.commit()


def _prepare_mysql(connection: Any, record: Any) -> None:
    """Sets options. PyMySQL has no settings of probes, and one time limit for all answers."""
    found: socket.socket = connection._sock
    if found.family != socket.AF_UNIX:
        for option, value in _PROBES.items():
            if hasattr(socket, option):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    connection._read_timeout = STATEMENT_S
    with connection.cursor() as cursor:
        cursor.execute(
            f"set time_zone = '+00:00', innodb_lock_wait_timeout = {LOCK_S}, "
            f"lock_wait_timeout = {LOCK_S}, "
            f"sql_mode = concat_ws(',', nullif(@@sql_mode, ''), '{_MYSQL_MODE}') "
            f"/*M!100300 , idle_transaction_timeout = {IDLE_S} */"
        )


def sqlalchemy() -> Any:
    """Returns the library. Raises `MissingEnvironmentError`."""
    return library("sqlalchemy", "dagster-jet[sql]", "SQL databases need the package 'sqlalchemy'")
