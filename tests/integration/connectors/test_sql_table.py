"""A table of a database to look values up in: whole, with its types, as it is at each reading."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_jet import Pipeline, sinks, sources, tables
from dagster_jet.connectors.sql import place as place_module
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.errors import SourceError, SourceUnavailableError
from dagster_jet.testing import run_pipeline
from tests.integration.connectors.secret_urls import as_secret
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def url_of(kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder}/a.db"
    return (postgres() if kind == "postgresql" else mariadb()).url


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_all_rows_with_their_types(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path)
    place = SqlPlace(as_secret(url), "looked_up")
    with place.connected() as connection:
        connection.exec_driver_sql("drop table if exists looked_up")
        connection.exec_driver_sql(
            "create table looked_up "
            "(id bigint, name varchar(20), price decimal(9,2), since date, at timestamp null)"
        )
        connection.exec_driver_sql(
            "insert into looked_up values "
            "(1, 'a', 1.50, '2026-01-02', '2026-01-02 03:04:05'), (2, null, null, null, null)"
        )
        connection.commit()
    frame = tables.sql(as_secret(url), table="looked_up").frame(spark)
    assert frame.columns == ["id", "name", "price", "since", "at"]
    first, second = (row.asDict() for row in frame.orderBy("id").collect())
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    found_at = frame.selectExpr("unix_seconds(at) as at").orderBy("at", ascending=False).first()
    assert found_at is not None and found_at.at == at.timestamp()
    assert (first["id"], first["name"], first["since"]) == (1, "a", date(2026, 1, 2))
    assert first["price"] == Decimal("1.50")
    assert set(second.values()) == {2, None}


def test_a_job_finds_the_values(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("create table names (k text, name text)")
        database.execute("insert into names values ('a', 'Anna')")
        database.commit()
    names = tables.sql(f"sqlite:///{tmp_path}/a.db", table="names")
    p = Pipeline("named")
    p.read_from(sources.items([], schema="k string"), name="rows").enrich(names, on="k").write_to(
        sinks.collect("named"), name="out"
    )
    rows = run_pipeline(p, {"rows": [{"k": "a"}, {"k": "b"}]})["out"]
    assert sorted(rows, key=str) == [{"k": "a", "name": "Anna"}, {"k": "b", "name": None}]


def test_a_table_or_a_server_that_is_not_there(spark: SparkSession, tmp_path: Path) -> None:
    missing: Any = tables.sql(f"sqlite:///{tmp_path}/a.db", table="none")
    with pytest.raises(SourceError, match=r"the table 'none' at .* does not exist"):
        missing.frame(spark)
    with pytest.raises(SourceUnavailableError):
        tables.sql("postgresql://me@127.0.0.1:9/db", table="t").frame(spark)


def test_a_query_of_mariadb_may_take_longer_than_an_answer(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_module, "ANSWER_S", 1)
    database = mariadb()
    database.run("create table t (id bigint)")
    database.run("insert into t values (7)")
    database.run("create view slow as select id, sleep(2) as slept from t")
    frame = tables.sql(as_secret(database.url), table="slow").frame(spark)
    assert [tuple(row) for row in frame.collect()] == [(7, 0)]


def test_a_dead_server_is_found_by_probes_and_a_lock_is_waited_for_shortly() -> None:
    with SqlPlace(as_secret(mariadb().url), "t").connected() as connection:
        waits = connection.exec_driver_sql("select @@lock_wait_timeout").scalar()
        found = connection.connection.driver_connection._sock
        set_to = [
            found.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert (waits, set_to) == (place_module.LOCK_S, [10, 5, 3])
