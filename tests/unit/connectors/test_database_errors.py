"""Errors of databases: what passes, and what a person has to change."""

from __future__ import annotations

import psycopg
import pytest

from dagster_jet.connectors.sql.failures import ErrorKind, error_kind


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('too many connections for role "jet"', ErrorKind.PASSING),
        ('too many connections for database "app"', ErrorKind.PASSING),
        ('database "app" is not currently accepting connections', ErrorKind.PASSING),
        ("the database system is starting up", ErrorKind.PASSING),
        ("sorry, too many clients already", ErrorKind.PASSING),
        ('role "jet" does not exist', ErrorKind.DENIED),
        ('role "jet" is not permitted to log in', ErrorKind.DENIED),
        ('database "app" does not exist', ErrorKind.DENIED),
        ('permission denied for database "app"', ErrorKind.DENIED),
        ('password authentication failed for user "jet"', ErrorKind.DENIED),
    ],
)
def test_a_connection_that_postgres_refuses(said: str, kind: ErrorKind) -> None:
    """It has a text and no SQLSTATE."""
    where = 'connection failed: connection to server at "127.0.0.1", port 5432 failed'
    assert error_kind(psycopg.OperationalError(f"{where}: FATAL:  {said}")) is kind
