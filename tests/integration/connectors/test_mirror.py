"""A table that is kept as another one is, from its changes: row by row, whatever is done to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from dagster_jet import JobConfig, Pipeline, PipelineError, Secret, sinks, sources
from dagster_jet.connectors.change_columns import not_changes
from dagster_jet.connectors.sql.mirror import ChangesWriter, Mirror
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.errors import (
    ConfigurationError,
    JetError,
    RowsRefusedError,
    SinkMismatchError,
)
from dagster_jet.snapshot.record import JobStatus
from tests.integration import child
from tests.integration.connectors.changes_reading import changes, database
from tests.integration.world import World
from tests.long import long_but_for
from tests.servers.mariadb import mariadb
from tests.servers.postgres import PostgresDatabase, postgres

__all__ = ["database"]

COLUMNS = "id bigint primary key, text text, n int"
BIG = "repeat(md5(%s), 100)"


def applied(place: SqlPlace, rows: Sequence[Any], reader: Any, size: int = 1_000) -> None:
    """Applies rows in batches of a size, as a commit does."""
    table, _ = reader._tables(rows)
    with place.connected() as connection, connection.begin():
        mirror = Mirror(connection, place, ("id",), "j", "out")
        mirror.apply(table.combine_chunks().to_batches(max_chunksize=size))


def taken(reader: Any) -> list[Any]:
    reader.accept(reader.poll())
    rows: list[Any] = []
    while split := reader.plan(1_000):
        rows += split
    return rows


def contents(place: SqlPlace) -> Counter[tuple[Any, ...]]:
    with place.connected() as connection:
        found = connection.exec_driver_sql(f"select id, text, n from {place.table}")
        return Counter(tuple(row) for row in found)


TARGETS = ("postgresql", "mariadb", "sqlite")


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlPlace]:
    columns = COLUMNS
    if request.param == "postgresql":
        url = postgres().url
    elif request.param == "mariadb":
        url, columns = mariadb().url, COLUMNS.replace("text text", "text longtext")
    else:
        url = f"sqlite:///{tmp_path}/mirror.db"
    place = SqlPlace(url, "mirrored")
    with place.connected() as connection, connection.begin():
        connection.exec_driver_sql(f"create table mirrored ({columns})")
    yield place


def changed(connection: psycopg.Connection[Any], some: random.Random) -> None:
    """One of the things that people do to a table with few keys, so that they meet."""
    one, other = some.sample(range(12), 2)
    is_taken = "not exists (select from t where id = %s)"
    insertion = f"insert into t select %s, {BIG}, %s where {is_taken}"
    match some.randrange(12):
        case 0 | 1 | 2 | 3:
            connection.execute(insertion, (one, str(some.random()), some.randrange(100), one))
        case 4 | 5:
            connection.execute("update t set n = n + 1 where id = %s", (one,))
        case 6:
            connection.execute(f"update t set text = {BIG} where id = %s", (str(one), one))
        case 7 | 8:
            move = f"update t set id = %s, n = -n where id = %s and {is_taken}"
            connection.execute(move, (other, one, other))
        case 9:
            connection.execute("delete from t where id = %s", (one,))
        case 10:
            connection.execute("delete from t where id = %s", (one,))
            connection.execute(insertion, (one, "anew", 0, one))
        case 11:
            if some.random() < 0.1:
                connection.execute("truncate t")


@pytest.mark.parametrize("target", long_but_for(TARGETS, "postgresql", "sqlite"), indirect=True)
@pytest.mark.parametrize("seed", long_but_for(range(3), "0"))
def test_whatever_is_done_to_a_table_is_done_to_its_mirror(
    database: PostgresDatabase, target: SqlPlace, seed: int
) -> None:
    """Large values that stay as they are, keys that change and change back, all in one epoch."""
    some = random.Random(seed)
    database.run("alter table t add n int")
    database.run("alter table t alter text set storage external")
    reader = changes(database).open("j", "in", None)
    for turn in range(12):
        for _ in range(some.randrange(1, 12)):
            with psycopg.connect(database.url) as connection:
                for _ in range(some.randrange(1, 8)):
                    changed(connection, some)
        applied(target, taken(reader), reader, size=some.choice([1, 3, 1_000]))
        wanted = Counter(database.run("select id, text, n from t"))
        assert contents(target) == wanted, f"seed {seed}, turn {turn}"
    reader.close()


@pytest.mark.parametrize(
    ("key", "other"),
    [
        (("z", "jet_old_z"), "n"),
        (("jet_old_z", "z"), "jet_old_n"),
        (("x", "to_x"), "key_x"),
        (("to_x", "key_x"), "x"),
        (("c1", "new0"), "p00000"),
    ],
)
def test_columns_may_have_any_names(target: SqlPlace, key: tuple[str, str], other: str) -> None:
    """Failed before: some were names of our parameters and of the former keys."""
    a, b = key
    with target.connected() as connection, connection.begin():
        connection.exec_driver_sql("drop table mirrored")
        columns = f"{a} bigint, {b} bigint, {other} bigint, text int, primary key ({a}, {b})"
        connection.exec_driver_sql(f"create table mirrored ({columns})")
        connection.exec_driver_sql("insert into mirrored values (1, 2, 3, 4), (5, 6, 7, 8)")
    old = pa.struct([(a, pa.int64()), (b, pa.int64())])
    schema = pa.schema(
        [
            ("op", pa.string()), (a, pa.int64()), (b, pa.int64()), (other, pa.int64()),
            ("text", pa.int32()), ("_lsn", pa.int64()), ("_row", pa.int64()), ("_old", old),
            ("_unchanged", pa.list_(pa.string())),
        ]
    )  # fmt: skip
    rows = [
        ("update", (1, 2), (1, 2), 30),
        ("update", (1, 2), (2, 1), 31),
        ("insert", None, (9, 9), 9),
        ("delete", (5, 6), (None, None), None),
    ]
    changes = [
        {
            "op": op, a: now[0], b: now[1], other: value, "text": 9 if op == "insert" else None,
            "_lsn": 1, "_row": number, "_old": was and dict(zip(key, was, strict=True)),
            "_unchanged": ["text"] if op == "update" else [],
        }
        for number, (op, was, now, value) in enumerate(rows)
    ]  # fmt: skip
    with target.connected() as connection, connection.begin():
        batch = pa.RecordBatch.from_pylist(changes, schema)
        Mirror(connection, target, key, "j", "out").apply([batch])
    with target.connected() as connection:
        found = connection.exec_driver_sql("select * from mirrored").all()
    assert Counter(map(tuple, found)) == Counter([(2, 1, 31, 4), (9, 9, 9, 9)])


def test_rows_that_are_not_there_are_asked_for(
    database: PostgresDatabase, target: SqlPlace
) -> None:
    """The row existed before the slot, and no change has its large value."""
    database.run("alter table t add n int")
    database.run("alter table t alter text set storage external")
    database.run(f"insert into t values (1, {BIG % 'id'}, 0)".replace("id", "'x'"))
    reader = changes(database).open("j", "in", None)
    database.run("update t set n = 1")
    rows = taken(reader)
    with pytest.raises(SinkMismatchError, match="lacks 1 of 1 rows"):
        applied(target, rows, reader)
    with target.connected() as connection, connection.begin():
        connection.exec_driver_sql("insert into mirrored values (1, 'copied', 0)")
    applied(target, rows, reader)
    assert contents(target) == Counter([(1, "copied", 1)])
    reader.close()


def test_a_change_without_its_key_is_refused_before_it_is_decided(
    database: PostgresDatabase,
) -> None:
    """The table's identity is another one than the sink's key."""
    reader = changes(database).open("j", "in", None)
    database.run("insert into t values (1, 'a')")
    database.run("update t set text = 'b'")
    table, _ = reader._tables(taken(reader))
    written: list[int] = []

    class Segment:
        def append(self, data: bytes, rows: int) -> None:
            written.append(rows)

    batch = table.combine_chunks().to_batches()[0]
    ChangesWriter(Segment(), ("id",), "j", "out").write(batch)
    assert written == [2]
    with pytest.raises(SinkMismatchError, match="text is null in a change, or its value before"):
        ChangesWriter(Segment(), ("text",), "j", "out").write(batch)
    reader.close()


def test_what_the_table_never_takes_is_found_before_it_is_decided(
    database: PostgresDatabase, target: SqlPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: it was decided, and no start could commit it. A null that only says that a
    large value has stayed, or that stands in a deletion, is no value."""
    monkeypatch.setenv("JET_TEST_MIRROR", str(target.url))
    with target.connected() as connection, connection.begin():
        connection.exec_driver_sql("drop table mirrored")
        columns = COLUMNS.replace("text text", "text varchar(4000) not null")
        connection.exec_driver_sql(f"create table mirrored ({columns})")
    database.run("alter table t add n int")
    database.run("alter table t alter text set storage external")
    reader = changes(database).open("j", "in", None)
    database.run("insert into t values (1, repeat('x', 3500), 0)")
    database.run("update t set n = 1")
    database.run("insert into t values (2, repeat('y', 4500), 2)")
    database.run("delete from t where id = 2")
    database.run("insert into t values (3, null, 3)")
    table, _ = reader._tables(taken(reader))
    reader.close()
    made = sinks.sql(Secret("JET_TEST_MIRROR"), table="mirrored", mode="mirror", key="id")
    sink: Any = made.at_start("j", "out", on_one_host=True)
    [batch] = table.combine_chunks().to_batches()
    found = {number: one.reason for number, one in sink.refused(batch).items()}
    too_long = sink.dialect != "sqlite"  # which has no such limit
    assert sorted(found) == ([2, 4] if too_long else [4]), found
    assert "text is null" in found[4] and (not too_long or "is longer than" in found[2])


@pytest.mark.parametrize("op", ["insert", "update", "delete"])
def test_a_key_that_python_lacks_is_found_before_it_is_decided(
    target: SqlPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    """Failed before: an OverflowError in each commit."""
    monkeypatch.setenv("JET_TEST_MIRROR", str(target.url))
    with target.connected() as connection, connection.begin():
        connection.exec_driver_sql("drop table mirrored")
        connection.exec_driver_sql("create table mirrored (day date primary key)")
    made = sinks.sql(Secret("JET_TEST_MIRROR"), table="mirrored", mode="mirror", key="day")
    sink: Any = made.at_start("j", "out", on_one_host=True)
    days = pa.array([0, 2_932_897, None, -719_163], pa.int32()).cast(pa.date32())
    nulls = pa.nulls(4, pa.date32())
    now, old = (nulls, days) if op == "delete" else (days, nulls)
    if op == "update":
        old, now = days, pa.array([0, 0, None, 0], pa.int32()).cast(pa.date32())
    changes = pa.record_batch(
        {
            "op": pa.array([op, op, "truncate", op]),
            "day": now,
            "_lsn": pa.array([1] * 4),
            "_row": pa.array([1, 2, 3, 4]),
            "_old": pa.StructArray.from_arrays([old], ["day"]),
            "_unchanged": pa.array([[]] * 4, pa.list_(pa.string())),
        }
    )
    found = {number: one.reason for number, one in sink.refused(changes).items()}
    assert sorted(found) == [1, 3]
    assert "day is after the year 9999" in found[1] and "day is before the year 1" in found[3]


def test_a_mirror_leaves_nothing_out(
    world: World, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the decision nor behind it; and what the errors say helps does."""
    monkeypatch.setenv("JET_TEST_MIRROR", database.url)
    url, slot = Secret("JET_TEST_MIRROR"), f"s_{database.name}"
    database.run("create table m (id bigint primary key, text varchar(3), check (id <> 2))")
    database.run(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    database.run("insert into t values (1, 'long'), (2, 'a'), (3, 'b')")

    def pipeline(*, letters: bool = False) -> Pipeline:
        p = Pipeline("mirror")
        source = sources.postgres_changes(url, slot=slot, publication="p")
        rows = p.read_from(source, name="changes")
        out = rows.write_to(sinks.sql(url, table="m", mode="mirror", key="id"), name="out")
        if letters:
            to = sinks.files(f"{world.folder}/letters", format="json")
            out.dead_letter_to(to, name="letters")
        return p

    def run(p: Pipeline, **options: Any) -> None:
        with world.jet() as jet:
            settings = {**child.CONFIG, "max_items_per_epoch": 9, "restart_attempts_max": 0}
            jet.run(p, JobConfig(**settings), until="drained", **options)

    with pytest.raises(
        PipelineError, match=r"no row can be left out.*Leave dead_letter_to\(\) out"
    ):
        run(pipeline(letters=True))
    with pytest.raises(JetError, match="is longer than") as told:
        run(pipeline())
    assert "Change the sink's table or topic so that it accepts" in str(told.value)
    assert "dead_letter_to" not in str(told.value)
    database.run("alter table m alter text type text")
    for options in ({}, {"refused_to_dead_letters": True}):
        with pytest.raises(RowsRefusedError, match="accepts the rows") as told:
            run(pipeline(), **options)
        assert "refused_to_dead_letters" not in str(told.value)
        assert database.run("select * from m") == []
    database.run("alter table m drop constraint m_id_check")
    run(pipeline())
    assert sorted(database.run("select id, text from m")) == [(1, "long"), (2, "a"), (3, "b")]


def test_rows_that_are_no_changes_are_refused() -> None:
    assert not_changes(pa.schema([("id", pa.int64())]), ("id",)) == (
        "the rows have no column op, _lsn, _row, _old, _unchanged, as changes have"
    )
    with pytest.raises(ConfigurationError, match="order_by"):
        sinks.sql("sqlite:///x.db", table="t", mode="mirror", key="id", order_by="n")
    with pytest.raises(ConfigurationError, match="needs a key"):
        sinks.sql("sqlite:///x.db", table="t", mode="mirror")


def test_a_job_mirrors_a_table(
    world: World, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, a job's own way: delete-then-insert in one transaction, and rows in any epoch."""
    monkeypatch.setenv("JET_TEST_MIRROR", database.url)
    url, slot = Secret("JET_TEST_MIRROR"), f"s_{database.name}"
    database.run("insert into t select i, 'a' from generate_series(0, 4) i")
    database.run(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with psycopg.connect(database.url) as connection:
        connection.execute("delete from t")
        connection.execute("insert into t select i, 'b' from generate_series(0, 4) i")
    database.run("update t set id = id + 10 where id > 2")
    p = Pipeline("mirror")
    p.read_from(sources.postgres_changes(url, slot=slot, publication="p"), name="changes").write_to(
        sinks.sql(url, table="m", mode="mirror", key="id", create_table=True), name="out"
    )
    with world.jet() as jet:
        for turn in range(2):
            result = jet.run(
                p, JobConfig(**{**child.CONFIG, "max_items_per_epoch": 3}), until="drained"
            )
            assert result.status is JobStatus.DRAINED
            rows = "select id, text from {} order by id"
            assert database.run(rows.format("m")) == database.run(rows.format("t"))
            assert len(database.run(rows.format("m"))) == 5 + turn
            database.run("insert into t values (%s, 'c')", 90 + turn)
        q = Pipeline("none")
        q.read_from(sources.items([{"id": 1}], schema="id long"), name="in").write_to(
            sinks.sql(url, table="m", mode="mirror", key="id"), name="out"
        )
        with pytest.raises(PipelineError, match="the rows have no column op"):
            jet.run(q, JobConfig(**child.CONFIG), until="drained")
