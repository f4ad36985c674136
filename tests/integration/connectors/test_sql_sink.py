"""Tables as sinks: the contract, against real databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.testing.check_sink import Row, check_sink
from tests.integration.connectors.sql_places import COLUMNS, MadeSink, all_rows
from tests.servers.mariadb import mariadb
from tests.servers.postgres import PASSWORD, PostgresDatabase, postgres
from tests.servers.proxy import Proxy

STEPS = (
    "staging.put.before",
    "staging.finished",
    "sql.commit.before",
    "sql.commit.fenced",
    "sql.commit.rows",
    "sql.commit.after",
)


@pytest.fixture
def database() -> PostgresDatabase:
    return postgres()


def reader(database: Any, table: str = "results") -> Callable[[], list[Row]]:
    def read() -> list[Row]:
        return all_rows(database.run, table)

    return read


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_of_postgres_keeps_the_contract(
    tmp_path: Path, spark: Any, database: PostgresDatabase, mode: str
) -> None:
    database.run(f"create table results ({COLUMNS['postgresql']})")
    options = {"mode": "upsert", "key": "id"} if mode == "upsert" else {}
    with Proxy(database.port) as proxy:
        make = MadeSink.of(tmp_path, database.through(proxy.port), **options)

        check_sink(
            make,
            reader(database),
            spark=spark,
            outages={"a connection that is cut": proxy.cut},
            steps=STEPS,
            secrets=(PASSWORD,),
        )
        make.close()


def test_a_table_of_mariadb_keeps_the_contract(tmp_path: Path) -> None:
    database = mariadb()
    database.run(f"create table results ({COLUMNS['mariadb']})")
    with Proxy(database.port) as proxy:
        make = MadeSink.of(tmp_path, database.through(proxy.port))
        check_sink(
            make,
            reader(database),
            outages={"a connection that is cut": proxy.cut},
            steps=STEPS,
            secrets=(PASSWORD,),
        )
        make.close()


def test_a_table_of_sqlite_keeps_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute(f"create table results ({COLUMNS['sqlite']})")

    def read() -> list[Row]:
        with closing(sqlite3.connect(path)) as table:
            return all_rows(table.execute)

    @contextmanager
    def locked() -> Iterator[None]:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin exclusive")
            yield
            other.execute("rollback")

    make = MadeSink.of(tmp_path, f"sqlite:///{path}")
    check_sink(make, read, outages={"a locked file": locked}, steps=STEPS)
    make.close()
