"""Errors of databases: what passes, and what a person has to change."""

from __future__ import annotations

import psycopg
import pymysql
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


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (1020, "Record has changed since last read in table 't'"),
        (1021, "Disk full (/tmp); waiting for someone to free some space"),
        (1026, "Error writing file 't' (Errcode: 28 \"No space left on device\")"),
        (1030, 'Got error 28 "No space left on device" from storage engine InnoDB'),
        (1030, 'Got error 5 "Input/output error" from storage engine InnoDB'),
        (1037, "Out of memory; restart server and try again (needed 65535 bytes)"),
        (1038, "Out of sort memory, consider increasing server sort buffer size"),
        (1041, "Out of memory."),
        (1047, "WSREP has not yet prepared node for application use"),
        (1114, "The table 't' is full"),
        (1206, "The total number of locks exceeds the lock table size"),
        (1969, "Query execution was interrupted (max_statement_time exceeded)"),
    ],
)
def test_a_fault_of_mariadb_that_passes(number: int, said: str) -> None:
    assert error_kind(pymysql.err.OperationalError(number, said)) is ErrorKind.PASSING


def test_a_damaged_table_of_mariadb_is_not_waited_for() -> None:
    said = 'Got error 194 "Tablespace is missing for a table" from storage engine InnoDB'
    assert error_kind(pymysql.err.OperationalError(1030, said)) is ErrorKind.MISMATCH
