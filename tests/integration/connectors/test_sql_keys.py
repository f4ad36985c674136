"""Keys of tables, as databases compare them: a row of ours changes no other row."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import ConfigurationError, PipelineError
from tests.integration.connectors.sql_job import SqliteDatabase
from tests.integration.connectors.sql_places import MadeSink
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])


class Table:
    """A sink with a key, as an execution uses it, on a database of its own."""

    def __init__(self, kind: str, folder: Path, **options: Any) -> None:
        servers: dict[str, Any] = {"postgresql": postgres, "mariadb": mariadb}
        self.database = servers[kind]() if kind in servers else SqliteDatabase(folder / "a.db")
        self.made = MadeSink.of(
            folder, self.database.url, **{"mode": "upsert", "key": "k", **options}
        )
        self.epoch = 0

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        for statement in statements:
            found: list[tuple[Any, ...]] = self.database.run(statement)
        return found

    def start(self) -> Any:
        return self.made().at_start("j", "out", on_one_host=True)

    def check(self, rows: pa.Schema = ROWS) -> None:
        self.start().takes(rows)

    def write(self, rows: pa.Table) -> None:
        self.epoch += 1
        sink = self.start()
        writer = sink.open_writer(TransactionId("j", "out", 1, 1, self.epoch, 0, "a"))
        for batch in rows.to_batches():
            writer.write(batch)
        context = CommitContext("j", "out", 1, 1, recovering=False)
        sink.open_committer("j", "out").commit(writer.prepare(), context)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Table] = []

    def new(kind: str, **options: Any) -> Table:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Table(kind, folder, **options))
        return made[-1]

    yield new
    for one in made:
        one.made.close()


MARIADB_EXACT = "k varchar(9) character set utf8mb4 collate utf8mb4_nopad_bin"
FOLDING = {
    "mariadb": ["k varchar(9) character set utf8mb4 collate utf8mb4_general_ci",
                "k varchar(9) character set utf8mb4 collate utf8mb4_bin", "k varchar(9)",
                "k char(9) character set utf8mb4 collate utf8mb4_nopad_bin",
                "k enum('a', 'b')"],
    "postgresql": ["k char(3)", "k text collate ci", "k citext", "k jsonb", "k inet", "k name"],
    "sqlite": ["k text collate nocase", "k text collate rtrim"],
}  # fmt: skip
"""Columns that take different texts for one key, by kind of database."""
EXACT = {
    "mariadb": [MARIADB_EXACT, "k varchar(9) character set latin1 collate latin1_nopad_bin"],
    "postgresql": ["k text", "k varchar(9)", 'k text collate "C"', "k uuid", "k mood"],
    "sqlite": ["k text", "k text collate binary", "k"],
}


def prepare(table: Table) -> None:
    if "postgresql" in table.database.url:
        table.run(
            "create collation ci (provider = icu, locale = 'und-u-ks-level2', "
            "deterministic = false)",
            "create extension if not exists citext",
            "create type mood as enum ('sad', 'ok')",
        )


@pytest.mark.parametrize("mode", ["upsert", "delete"])
@pytest.mark.parametrize("kind", list(FOLDING))
def test_a_column_that_folds_keys_is_no_key(make: Any, kind: str, mode: str) -> None:
    # Failed before: four keys became one row, or the epoch could never be committed.
    table = make(kind, mode=mode)
    prepare(table)
    for column in FOLDING[kind]:
        table.run("drop table if exists results")
        table.run(f"create table results ({column} not null unique, v bigint)")
        with pytest.raises(PipelineError, match="the key has the column k") as told:
            table.check()
        for cure in re.findall(r"key: (alter table .*?)\. Change", str(told.value)):
            table.run(cure)
            table.check()


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("mariadb", "`50%` varchar(9) character set utf8mb4 collate utf8mb4_general_ci"),
        ("postgresql", '"50%" char(3)'),
    ],
)
def test_the_cure_names_a_column_as_the_table_does(make: Any, kind: str, column: str) -> None:
    """Failed before: the statement had each percent sign twice."""
    table = make(kind, key="50%")
    rows = pa.schema([("50%", pa.string()), ("v", pa.int64())])
    table.run(f"create table results ({column} not null unique, v bigint)")
    with pytest.raises(PipelineError, match="the key has the column 50%") as told:
        table.check(rows)
    [cure] = re.findall(r"key: (alter table .*?)\. Change", str(told.value))
    table.run(cure)
    table.check(rows)


@pytest.mark.parametrize("kind", list(EXACT))
def test_a_column_that_compares_exactly_is_a_key(make: Any, kind: str) -> None:
    table = make(kind)
    prepare(table)
    for column in EXACT[kind]:
        table.run("drop table if exists results")
        table.run(f"create table results ({column} not null unique, v bigint)")
        table.check()


@pytest.mark.parametrize("kind", list(EXACT))
def test_keys_that_look_alike_are_rows_of_their_own(make: Any, kind: str) -> None:
    table = make(kind, create_table=True)
    keys = ["a", "A", "a ", "\u00e4", "a\u0308", "", "0", "00", "stra\u00dfe", "strasse"]
    for _ in range(2):
        table.write(pa.table({"k": keys, "v": list(range(len(keys)))}))
    found = table.run("select k, v from results")
    assert sorted(found) == sorted(zip(keys, range(len(keys)), strict=True))
    table.check()


@pytest.mark.parametrize(
    ("kind", "index", "is_refused"),
    [
        ("mariadb", "n bigint unique", True),
        ("mariadb", "n bigint, unique (n, k)", False),
        ("mariadb", "n bigint, w varchar(9) default 'x', unique (w(3))", True),
        ("mariadb", "n bigint, id bigint not null auto_increment primary key", False),
        ("mariadb", "n bigint, w bigint unique", False),
        ("mariadb", "n bigint, w bigint default 7 unique", True),
        ("mariadb", "n bigint, key (n)", False),
        ("postgresql", "n bigint unique", False),
        ("sqlite", "n bigint unique", False),
    ],
)
def test_another_unique_index(make: Any, kind: str, index: str, is_refused: bool) -> None:
    """Failed before, on MariaDB: the row of another key was changed."""
    table = make(kind)
    key = MARIADB_EXACT if kind == "mariadb" else "k text"
    table.run(f"create table results ({key} not null unique, {index}, v bigint)")
    table.run("insert into results (k, n, v) values ('mine', 1, 1)")
    rows = pa.schema([*ROWS, ("n", pa.int64())])
    if not is_refused:
        table.check(rows)
        return
    with pytest.raises(PipelineError, match="besides the key there is the unique index"):
        table.check(rows)


UNFIT = {
    "postgresql": ["unique (k) deferrable", "exclude using btree (k with =)"],
    "mariadb": ["unique (k(3))"],
}
UNFIT_AFTER = {
    "postgresql": ["results (k, lower(k))", "results (k) where v > 0"],
    "sqlite": ["results (k, lower(k))", "results (k) where v > 0"],
}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_an_index_that_no_upsert_can_go_by(make: Any, kind: str) -> None:
    # Failed before: the start took them, and the first epoch could never be committed.
    table = make(kind)
    key = f"{MARIADB_EXACT} not null" if kind == "mariadb" else "k text not null"
    for index in UNFIT.get(kind, []):
        table.run(f"create table results ({key}, v bigint, {index})")
        with pytest.raises(PipelineError, match="no unique index of the table is on exactly k"):
            table.check()
        table.run("drop table results")
    for index in UNFIT_AFTER.get(kind, []):
        table.run(f"create table results ({key}, v bigint)", f"create unique index i on {index}")
        with pytest.raises(PipelineError, match="no unique index of the table is on exactly k"):
            table.check()
        table.run("drop table results")


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_an_index_with_a_collation_of_its_own(make: Any, kind: str) -> None:
    table = make(kind)
    prepare(table)
    table.run("create table results (k text not null, v bigint)")
    collate = {"postgresql": "ci", "sqlite": "nocase"}[kind]
    table.run(f"create unique index i on results (k collate {collate})")
    with pytest.raises(PipelineError, match="texts that differ are equal in the unique index i"):
        table.check()


def test_a_uuid_has_one_form(make: Any, spark: Any) -> None:
    # Failed before: "ON CONFLICT DO UPDATE command cannot affect row a second time".
    table = make("postgresql", order_by="v")
    table.run("create table results (k uuid primary key, v bigint)")
    one = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    texts = [one, one.lower(), f"{{{one}}}", one.replace("-", ""), str(UUID(int=1))]
    rows = spark.createDataFrame(list(zip(texts, range(5), strict=True)), "k string, v long")
    table.write(table.start().render(rows).toArrow())
    assert sorted(table.run("select k, v from results")) == sorted(
        [(UUID(one), 3), (UUID(int=1), 4)]
    )


def test_a_map_is_an_object(make: Any) -> None:
    # Failed before: [["a", 1]].
    table = make("postgresql", mode="append", key=())
    table.run("create table results (m jsonb, n jsonb, t text)")
    maps = pa.map_(pa.string(), pa.float64())
    rows = {
        "m": pa.array([[("a", 1.0), ("b", float("nan"))], [], None], maps),
        "n": pa.array([{"m": [("a", None)]}, {"m": None}, None], pa.struct([("m", maps)])),
        "t": pa.array([[(1, "x")], [], None], pa.map_(pa.int64(), pa.string())),
    }
    table.write(pa.table(rows))
    assert table.run("select * from results") == [
        ({"a": 1.0, "b": "NaN"}, {"m": {"a": None}}, '{"1": "x"}'),
        ({}, {"m": None}, "{}"),
        (None, None, None),
    ]


def test_the_table_may_be_called_as_our_temporary_one(make: Any) -> None:
    # Failed before: the rows went into the temporary table, and were gone with it.
    table = make("postgresql", table="jet_rows")
    table.run("create table jet_rows (k text primary key, v bigint)")
    table.write(pa.table({"k": ["a"], "v": [1]}, ROWS))
    assert table.run("select * from jet_rows") == [("a", 1)]


def test_names_with_capitals_and_reserved_words(make: Any) -> None:
    for kind, q in (("postgresql", '"'), ("mariadb", "`"), ("sqlite", '"')):
        table = make(kind, table="Order", key="Select")
        text = "varchar(9) collate utf8mb4_nopad_bin" if kind == "mariadb" else "text"
        columns = f"{q}Select{q} {text} not null unique, {q}a b{q} bigint"
        more = "character set utf8mb4" if kind == "mariadb" else ""
        table.run(f"create table {q}Order{q} ({columns}) {more}")
        for value in (1, 2):
            table.write(pa.table({"Select": ["x"], "a b": [value]}))
        assert [tuple(r) for r in table.run(f"select * from {q}Order{q}")] == [("x", 2)]


def test_a_name_that_the_database_would_cut(make: Any) -> None:
    table = make("postgresql", mode="append", key=(), create_table=True)
    with pytest.raises(PipelineError, match="longer than the 63 bytes"):
        table.write(pa.table({"k" * 64: [1]}))


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_a_computed_column_takes_no_value(make: Any, kind: str) -> None:
    table = make(kind, mode="append", key=())
    word = "text" if kind != "mariadb" else "varchar(9)"
    table.run(f"create table results (k {word}, v bigint generated always as (1) stored)")
    with pytest.raises(PipelineError, match="the database computes v"):
        table.check()
    table.check(pa.schema([("k", pa.string())]))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_column_that_postgres_always_numbers_takes_the_rows_values(make: Any, mode: str) -> None:
    """Failed before: an upsert in each commit."""
    always = "bigint generated always as identity"
    table = make("postgresql", mode=mode, key="v" if mode == "upsert" else ())
    table.run(f"create table results (k text, v {always} primary key)")
    table.write(pa.table({"k": ["a", "b"], "v": [7, 8]}, ROWS))
    wanted = [("a", 7), ("b", 8)]
    if mode == "upsert":
        table.write(pa.table({"k": ["c"], "v": [8]}, ROWS))
        wanted = [("a", 7), ("c", 8)]
    assert table.run("select k, v from results order by v") == wanted


def test_a_column_that_postgres_always_numbers_cannot_be_changed(make: Any) -> None:
    table = make("postgresql")
    table.run("create table results (k text primary key, v bigint generated always as identity)")
    with pytest.raises(PipelineError, match=r"numbers v itself.* set generated by default"):
        table.check()
    table.check(pa.schema([("k", pa.string())]))
    table.run("alter table results alter column v set generated by default")
    table.write(pa.table({"k": ["a"], "v": [7]}, ROWS))
    assert table.run("select * from results") == [("a", 7)]


@pytest.mark.parametrize(
    ("declared", "rows", "is_kept"),
    [
        ("text", pa.string(), True),
        ("string", pa.string(), False),  # of numeric affinity: '007' would be 7
        ("integer", pa.string(), False),
        ("text", pa.int64(), False),
        ("real", pa.int64(), False),
        ("bigint", pa.int64(), True),
        ("decimal(20, 2)", pa.decimal128(20, 2), False),
        ("decimal(10, 2)", pa.decimal128(10, 2), True),
        ("text", pa.decimal128(38, 2), True),
        ("timestamp", pa.timestamp("us", "UTC"), True),
        ("", pa.string(), True),
    ],
)
def test_what_sqlite_would_change(
    make: Any, declared: str, rows: pa.DataType, is_kept: bool
) -> None:
    table = make("sqlite", mode="append", key=())
    table.run(f"create table results (v {declared})")
    if is_kept:
        table.check(pa.schema([("v", rows)]))
        return
    with pytest.raises(PipelineError, match="SQLite would change values"):
        table.check(pa.schema([("v", rows)]))


@pytest.mark.parametrize(
    "url", ["mssql+pyodbc://h/db", "duckdb:///a.db", "oracle://h/db", "postgresql+psycopg2://h/db"]
)
def test_a_database_that_is_not_tested_is_refused_by_name(url: str) -> None:
    # Failed before: statements that it does not know, and no fence.
    from dagster_jet import sinks, sources

    name = url.partition("://")[0]
    with pytest.raises(ConfigurationError, match=re.escape(f"{name!r} is not supported")):
        sinks.sql(url, table="t")
    with pytest.raises(ConfigurationError, match=re.escape(f"{name!r} is not supported")):
        sources.sql(url, table="t", column="id")


def test_sqlite_is_plain(make: Any) -> None:
    table = make("sqlite", create_table=True)
    table.write(pa.table({"k": ["a"], "v": [1]}, ROWS))
    with closing(sqlite3.connect(table.database.path)) as database:
        assert database.execute("select * from results").fetchall() == [("a", 1)]
