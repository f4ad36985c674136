"""Readers of changes under test: on databases of their own, without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from dagster_jet import sources
from dagster_jet.connectors.postgres.changes_reader import ChangesReader
from tests.integration.connectors.secret_urls import as_secret
from tests.servers.postgres import PostgresDatabase, postgres

OWN = ("_lsn", "_row", "_old", "_unchanged")


@pytest.fixture
def database() -> Iterator[PostgresDatabase]:
    found = postgres()
    found.run("create table t (id bigint primary key, text text)")
    found.run("create publication p for table t")
    yield found
    drop_slots(found)


def drop_slots(database: PostgresDatabase) -> None:
    """They are the server's: few are allowed, and each keeps its log."""
    database.run(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots "
        "where database = current_database()"
    )


def changes(database: PostgresDatabase, port: int | None = None, **options: Any) -> Any:
    url = as_secret(database.through(port or database.port))
    named = {"slot": f"s_{database.name}", "publication": "p", **options}
    return sources.postgres_changes(url, **named)


def insert(database: PostgresDatabase, table: str, rows: list[dict[str, Any]]) -> None:
    """One transaction."""
    names = ", ".join(rows[0])
    places = ", ".join(["%s"] * len(rows[0]))
    with psycopg.connect(database.url) as connection, connection.cursor() as cursor:
        statement = f"insert into {table} ({names}) values ({places})"
        cursor.executemany(statement, [tuple(row.values()) for row in rows])


def read(reader: ChangesReader, max_rows: int = 1_000) -> list[dict[str, Any]]:
    """All that is there now."""
    reader.accept(reader.poll())
    rows: list[dict[str, Any]] = []
    while (split := reader.plan(max_rows)) is not None:
        rows += reader._tables(split)[0].to_pylist()
    return rows


def plain(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows without the source's columns about a change."""
    return [tuple(v for name, v in row.items() if name not in OWN) for row in rows]
