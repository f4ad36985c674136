"""Supported servers: those that are tested. Compatible servers may commit, lock or compare
differently, and are not tested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, is_postgres
from dagster_jet.core.secret import shown
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_POSTGRES_MIN, _MARIADB_MIN = (12,), (10, 6)
_NOT_POSTGRES = ("CockroachDB", "Redshift", "Greenplum", "-YB-")
"""Substrings of `version()`."""


def check_supported(connection: Connection, place: SqlPlace, job: str, stage: str) -> None:
    """Raises `ConfigurationError` if the server's kind or version is not supported."""
    version = connection.dialect.server_version_info or ()
    problem: str | None = None
    if is_postgres(connection):
        words = str(connection.exec_driver_sql("select version()").scalar())
        if not words.startswith("PostgreSQL ") or any(word in words for word in _NOT_POSTGRES):
            problem = f"is no PostgreSQL: {words.partition(' on ')[0]}"
        elif version < _POSTGRES_MIN:
            problem = "is a PostgreSQL before 12"
    elif is_mysql(connection):
        if not getattr(connection.dialect, "is_mariadb", False):
            problem = "is no MariaDB"
        elif version < _MARIADB_MIN:
            problem = "is a MariaDB before 10.6"
    connection.rollback()
    if problem is not None:
        raise ConfigurationError(
            f"the server at {shown(place.url)} {problem}, and is not supported.",
            job=job,
            stage=stage,
            cure="What is tested: PostgreSQL (12 or newer), MariaDB (10.6 or newer) and SQLite.",
        )
