"""Tables as sinks: the contract, against real databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.system import failpoint
from dagster_jet.testing.check_sink import check_sink, in_one_log
from dagster_jet.testing.sink_rows import Row
from tests.integration.connectors.sql_job import SqliteDatabase
from tests.integration.connectors.sql_places import (
    COLUMNS,
    MadeMirror,
    MadeSink,
    all_rows,
    set_back,
)
from tests.long import long
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


@long  # that of SQLite is not, nor that of PostgreSQL's held transactions in test_sql_held.py
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
            log_of=in_one_log if mode == "append" else None,
            outages={"a connection that is cut": proxy.cut},
            steps=STEPS,
            secrets=(PASSWORD,),
            set_back=set_back(database.run),
            refused=[{"text": "a\0b"}],
        )
        make.close()


@long
def test_a_mirror_keeps_the_contract(
    tmp_path: Path, spark: Any, database: PostgresDatabase
) -> None:
    database.run(f"create table results ({COLUMNS['postgresql']})")
    made = MadeSink.of(tmp_path, database.url, mode="mirror", key="id")
    make = MadeMirror(made.folder, made.env, made.options)
    check_sink(
        make,
        reader(database),
        spark=spark,
        log_of=None,
        steps=STEPS,
        secrets=(PASSWORD,),
        set_back=set_back(database.run),
        refused=[{"text": "a\0b"}],
    )
    make.close()


@long  # that of SQLite does; MariaDB's values and late statements have their tests
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
            set_back=set_back(database.run),
            refused=[{"number": float("nan")}, {"number": float("-inf")}],
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

    def run(statement: str) -> None:
        with closing(sqlite3.connect(path)) as other, other:
            other.execute(statement)

    check_sink(
        make,
        read,
        outages={"a locked file": locked},
        steps=STEPS,
        set_back=set_back(run),
        refused=[{"number": float("nan")}],
    )
    make.close()


# --- deletions ------------------------------------------------------------------------------------

NOTES = {
    "postgresql": "create function note() returns trigger language plpgsql as "
    "'begin insert into deleted values (old.id); return old; end'; "
    "create trigger note after delete on results for each row execute function note()",
    "mariadb": "create trigger note after delete on results for each row "
    "insert into deleted values (old.id)",
    "sqlite": "create trigger note after delete on results "
    "begin insert into deleted values (old.id); end",
}


@dataclass(frozen=True)
class Deletions:
    """A table whose every deletion the database itself notes: a second one of a row, too."""

    database: Any
    kind: str

    @classmethod
    def new(cls, kind: str, folder: Path) -> Deletions:
        servers: dict[str, Any] = {"postgresql": postgres, "mariadb": mariadb}
        database = servers[kind]() if kind in servers else SqliteDatabase(folder / "results.db")
        database.run("create table results (id bigint primary key)")
        database.run("create table deleted (id bigint)")
        database.run(NOTES[kind])
        return cls(database, kind)

    def put(self, ids: Iterable[int]) -> None:
        """Inserts rows as another writer does, anew if they were there before."""
        for some in _chunks(sorted(set(ids)), 10_000):
            values = ", ".join(f"({id})" for id in some)
            known = "select id from results"
            self.database.run(
                f"insert into results with new (id) as (values {values}) "
                f"select id from new where id not in ({known})"
            )

    def deleted(self) -> list[int]:
        return [id for (id,) in self.database.run("select id from deleted order by id")]

    def left(self) -> list[int]:
        return [id for (id,) in self.database.run("select id from results order by id")]


def _chunks(ids: list[int], size: int) -> Iterator[list[int]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))


@pytest.mark.parametrize("kind", list(NOTES))
def test_a_row_that_is_inserted_anew_is_not_deleted_again(
    tmp_path: Path, spark: Any, kind: str
) -> None:
    """The commit of an epoch failed after its transaction, or in it. The successor commits the
    epoch, or the dead execution does so late."""
    rows = Deletions.new(kind, tmp_path)
    make = MadeSink.of(tmp_path, rows.database.url, mode="delete", key="id")
    sink = make().at_start("j", "out", on_one_host=True)
    sink.check("j", "out", is_new_job=True)
    asked = spark.createDataFrame(
        [(1, "a"), (1, "b"), (2, None), (99, "c")], "id long, text string"
    )
    batches = sink.render(asked).toArrow().to_batches()
    rows.put([1, 2, 3])
    expected: list[int] = []

    def commit(execution: int) -> None:
        context = CommitContext("j", "out", 1, execution, recovering=True)
        sink.open_committer("j", "out").commit(artifacts, context)

    for epoch, step in enumerate(("sql.commit.after", "sql.commit.rows"), 1):
        writer = sink.open_writer(TransactionId("j", "out", 1, 1, epoch, 0, "a"))
        for batch in batches:
            writer.write(batch)
        artifacts = writer.prepare()
        failpoint.configure(f"{step}=raise")
        try:
            with pytest.raises(failpoint.FailPointError):
                commit(execution=1)
        finally:
            failpoint.configure("")
        is_committed = step == "sql.commit.after"
        assert rows.deleted() == sorted(expected + [1, 2] * is_committed)
        rows.put([1])
        expected += [1, 2]
        commit(execution=2)
        assert rows.deleted() == sorted(expected)
        rows.put([1, 2])
        commit(execution=1)
        assert rows.deleted() == sorted(expected) and rows.left() == [1, 2, 3]
    make.close()


@dataclass(frozen=True)
class Putting:
    """Spark for the suite, which makes rows for a sink: here of a table that has them already."""

    spark: Any
    rows: Deletions

    def createDataFrame(self, rows: pa.Table) -> Any:  # noqa: N802
        self.rows.put(rows["id"].to_pylist())
        return self.spark.createDataFrame(rows)


@long
@pytest.mark.parametrize("kind", list(NOTES))
def test_deletions_keep_the_contract(tmp_path: Path, spark: Any, kind: str) -> None:
    """The suite sees deleted rows as the sink's rows; they are put back after each look."""
    rows = Deletions.new(kind, tmp_path)
    make = MadeSink.of(tmp_path, rows.database.url, mode="delete", key="id")

    def read() -> list[Row]:
        found = rows.deleted()
        rows.put(found)
        return [{"id": id} for id in found]

    check_sink(make, read, spark=Putting(spark, rows), steps=STEPS, log_of=None)
    make.close()
