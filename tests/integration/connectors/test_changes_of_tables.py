"""Tables change while their changes are read, or while nobody reads: each row is what it was, or
the job ends with a sentence whose cure loses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest

from dagster_jet.connectors.postgres.changes_reader import ChangesReader
from dagster_jet.connectors.postgres.types import reads
from dagster_jet.contract import Backlog, BadRowRule
from dagster_jet.errors import (
    BadRowError,
    ConfigurationError,
    Reaction,
    SourceError,
    SourceUnavailableError,
)
from tests.integration.connectors.changes_reading import changes, database, insert, plain, read
from tests.servers.postgres import PostgresDatabase
from tests.servers.proxy import Proxy

__all__ = ["database"]

BIG = "select string_agg(md5(i::text), '') from generate_series(1, 1000) i"


def opened(database: PostgresDatabase, **options: Any) -> ChangesReader:
    reader: ChangesReader = changes(database, **options).open("j", "in", None)
    return reader


def again(
    database: PostgresDatabase, before: ChangesReader, *, acknowledges: bool = True, **options: Any
) -> ChangesReader:
    """The next execution, from a snapshot that the one before has taken just now."""
    position, messages = before.position(), before.unacknowledged()
    before.close()
    reader = opened(database, **options)
    reader.restore(position, None)
    if acknowledges:
        reader.restore_unacknowledged(messages)
        reader.acknowledge(messages)
    return reader


# --- columns --------------------------------------------------------------------------------------


def test_a_column_that_is_renamed_while_it_runs_is_read_by_both_names(
    database: PostgresDatabase,
) -> None:
    """The row before the change is read first; then the job restarts with the new columns."""
    reader = opened(database)
    database.run("insert into t values (1, 'a')")
    database.run("alter table t rename text to title")
    database.run("insert into t values (2, 'b')")
    assert [(row["id"], row["text"]) for row in read(reader)] == [(1, "a")]
    assert read(reader) == [], "until a snapshot has it, nothing that is behind it comes"
    reader.acknowledge(reader.unacknowledged())
    with pytest.raises(SourceError, match="has changed while the job was reading") as caught:
        reader.poll()
    assert caught.value.reaction is Reaction.RESTART
    reader = again(database, reader)
    assert [(row["id"], row["title"]) for row in read(reader)] == [(2, "b")]
    reader.close()


def test_a_run_that_is_to_drain_takes_a_snapshot_before_a_changed_table(
    database: PostgresDatabase,
) -> None:
    reader = opened(database)
    database.run("insert into t values (1, 'a')")
    database.run("alter table t add n int")
    database.run("insert into t values (2, 'b', 7)")
    reader.mark_backlog()
    assert [row["id"] for row in read(reader)] == [1]
    assert reader.backlog() is Backlog.HELD
    reader.acknowledge(reader.unacknowledged())
    with pytest.raises(SourceError, match="has changed"):
        reader.poll()
    reader = again(database, reader)
    reader.mark_backlog()
    assert [(row["id"], row["n"]) for row in read(reader)] == [(2, 7)]
    assert reader.backlog() is Backlog.READ
    reader.close()


def test_columns_that_were_renamed_or_dropped_while_it_was_down_are_asked_for(
    database: PostgresDatabase,
) -> None:
    database.run("alter table t add n int, add m int")
    reader = opened(database)
    reader.poll()
    database.run("insert into t values (1, 'a', 10, 100)")
    database.run("alter table t rename text to title")
    database.run("alter table t drop n")
    database.run("insert into t values (2, 'b', 200)")
    database.run("alter table t add more text default 'new'")
    database.run("insert into t values (3, 'c', 300)")
    reader = again(database, reader)
    with pytest.raises(
        SourceError, match=r"had the columns \(id, text, n, m\).*renamed="
    ) as caught:
        reader.poll()
    assert caught.value.reaction is Reaction.FAIL
    reader = again(database, reader, renamed={"text": "title", "n": None})
    assert plain(read(reader)) == [
        ("insert", 1, "a", 100, None),  # it had no such column then
        ("insert", 2, "b", 200, None),
        ("insert", 3, "c", 300, "new"),
    ]
    reader.close()
    with pytest.raises(ConfigurationError, match="has no column gone"):
        opened(database, renamed={"text": "gone"})


def test_rows_that_a_poll_has_found_before_it_was_cut_off_come_again(
    database: PostgresDatabase,
) -> None:
    """The columns of the first row and of the second one are looked up."""
    reader = opened(database)
    reader.poll()
    database.run("insert into t values (1, 'a')")
    database.run("alter table t add n int")
    database.run("insert into t values (2, 'b', 7)")
    database.run("alter table t add m int")
    database.run("insert into t values (3, 'c', 8, 9)")
    with Proxy(database.port) as proxy:
        reader = again(database, reader, port=proxy.port)
        lookups = count(1)
        proxy.cut_answer_to(lambda said: b"pg_publication_tables" in said and next(lookups) == 2)
        with pytest.raises(SourceUnavailableError):
            reader.poll()
        proxy.restore()
        assert [row["id"] for row in read(reader)] == [1, 2, 3]
        reader.close()


def test_two_columns_that_change_their_names_are_told_by_their_order(
    database: PostgresDatabase,
) -> None:
    database.run("alter table t add other text")
    reader = opened(database)
    database.run("insert into t values (1, 'a', 'b')")
    for names in ("text to x", "other to text", "x to other"):
        database.run(f"alter table t rename {names}")
    database.run("insert into t values (2, 'c', 'd')")
    reader = again(database, reader)
    with pytest.raises(SourceError, match="had the columns"):
        reader.poll()
    swapped = {"text": "other", "other": "text"}
    reader = again(database, reader, renamed=swapped)
    rows = [(row["id"], row["other"], row["text"]) for row in read(reader)]
    assert rows == [(1, "a", "b"), (2, "c", "d")]
    reader.close()


def test_a_name_that_went_to_a_new_column_is_told_by_the_gap(database: PostgresDatabase) -> None:
    """`text` became `title`, and there is a new `text`: what the log calls text is not in it."""
    reader = opened(database)
    database.run("insert into t values (1, 'a')")
    database.run("alter table t rename text to title")
    database.run("alter table t add text text")
    database.run("insert into t values (2, 'b', 'c')")
    reader = again(database, reader)
    with pytest.raises(SourceError, match="had the columns"):
        reader.poll()
    reader = again(database, reader, renamed={"text": "title"})
    rows = [(row["id"], row["title"], row["text"]) for row in read(reader)]
    assert rows == [(1, "a", None), (2, "b", "c")]
    reader.close()


@pytest.mark.parametrize(
    ("before", "after", "written", "found"),
    [
        ("int", "bigint", "7", 7),
        ("int", "text using n::text", "7", "7"),
        ("numeric(10, 4)", "numeric(10, 2)", "1.25", "1.25"),
        ("varchar(3)", "text", "'abc'", "abc"),
        ("text", "int using 0", "'7'", 7),
        ("text", "int using 0", "'seven'", BadRowError),
        ("numeric(10, 4)", "numeric(10, 2)", "1.2345", BadRowError),
        ("bigint", "int using 0", "4294967296", BadRowError),
        ("text", "boolean using true", "'true'", BadRowError),
        ("text", "bytea using ''", "'abcd'", BadRowError),
    ],
)
def test_a_column_whose_type_changes_has_the_same_value_or_none(
    database: PostgresDatabase, before: str, after: str, written: str, found: Any
) -> None:
    database.run(f"alter table t add n {before}")
    reader = opened(database)
    database.run(f"insert into t values (1, 'a', {written})")
    database.run(f"alter table t alter n type {after}")
    reader = again(database, reader)
    if found is BadRowError:
        with pytest.raises(BadRowError, match=r"the column n of public\.t has the value"):
            read(reader)
        return
    [row] = read(reader)
    value = row["n"]
    assert (f"{value:f}" if "numeric" in after else value) == found
    reader.close()


def test_what_spark_does_not_have_can_be_a_dead_letter(database: PostgresDatabase) -> None:
    """The cure for such a row loses no other."""
    database.run("alter table t add d date")
    reader = changes(database).open("j", "in", BadRowRule(("d",)))
    database.run(
        "insert into t values (1, 'a', 'infinity'), (2, 'b', '2026-01-02'), (3, 'c', null)"
    )
    reader.accept(reader.poll())
    split = reader.plan(100)
    rows, letters = reader._tables(split)
    assert [row["id"] for row in rows.to_pylist()] == [2]
    found = [(letter["reason"], letter["raw"]) for letter in letters.to_pylist()]
    assert "'infinity'" in found[0][0] and '"id":"1"' in found[0][1]
    assert found[1][0] == "d is null" and '"id":"3"' in found[1][1]
    reader.close()


def test_generated_columns_are_not_read_as_nulls(database: PostgresDatabase) -> None:
    """Generated columns are not in the log: the rows do not have them."""
    database.run("alter table t add twice bigint generated always as (id * 2) stored, add n int")
    reader = opened(database)
    database.run("insert into t (id, text, n) values (1, 'a', 5)")
    assert plain(read(reader)) == [("insert", 1, "a", 5)]
    assert "twice" not in changes(database).at_start("j", "in", on_one_host=True).row_schema()
    reader.close()


def test_column_lists_and_row_filters_of_a_publication(database: PostgresDatabase) -> None:
    """A row that an update takes into the filter is inserted, one that it takes out is deleted."""
    database.run("alter table t add hidden text")
    database.run("create publication few for table t (id, text) where (id < 10)")
    reader = opened(database, publication="few")
    database.run("insert into t values (1, 'a', 'x'), (20, 'b', 'y')")
    database.run("update t set id = 2 where id = 20")
    database.run("update t set id = 11 where id = 1")
    database.run("alter publication few set table t (id, text, hidden)")
    database.run("insert into t values (3, 'c', 'z')")
    rows = read(reader)
    assert plain(rows) == [("insert", 1, "a"), ("insert", 2, "b"), ("delete", 1, None)]
    reader.acknowledge(reader.unacknowledged())
    with pytest.raises(SourceError, match="has changed"):
        reader.poll()
    reader = again(database, reader, publication="few")
    assert plain(read(reader)) == [("insert", 3, "c", "z")]
    reader.close()


# --- tables ---------------------------------------------------------------------------------------


def test_another_table_in_the_publication_is_not_taken_for_the_first(
    database: PostgresDatabase,
) -> None:
    database.run("create table u (id bigint primary key, text text)")
    reader = opened(database)
    database.run("insert into t values (1, 'a')")
    database.run("alter publication p add table u")
    database.run("insert into u values (100, 'not mine')")
    database.run("insert into t values (2, 'b')")
    with pytest.raises(SourceError, match=r"has another table, public\.u") as caught:
        reader.poll()
    assert caught.value.reaction is Reaction.FAIL
    database.run("alter publication p drop table u")
    reader = again(database, reader)
    database.run("truncate t, u")
    assert plain(read(reader)) == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("truncate", None, None),
    ]
    reader.close()


def test_a_table_that_is_renamed_is_the_same_table(database: PostgresDatabase) -> None:
    reader = opened(database)
    database.run("insert into t values (1, 'a')")
    database.run("alter table t rename to orders")
    database.run("insert into orders values (2, 'b')")
    reader = again(database, reader)
    assert [row["id"] for row in read(reader)] == [1, 2]
    reader.close()


def test_a_partitioned_table_is_read_by_its_root(database: PostgresDatabase) -> None:
    database.run("create table m (id bigint primary key, n int) partition by range (id)")
    database.run("create table m1 partition of m for values from (0) to (10)")
    database.run("create publication parts for table m")
    with pytest.raises(SourceError, match=r"has another table, public\.m2"):
        reader = opened(database, publication="parts")
        database.run("create table m2 partition of m for values from (10) to (20)")
        database.run("insert into m values (1, 1), (11, 2)")
        reader.poll()
    reader.close()
    database.run("alter publication parts set (publish_via_partition_root = true)")
    database.run("insert into m values (2, 3), (12, 4)")
    reader = again(database, reader, publication="parts")
    assert [row["id"] for row in read(reader)] == [1, 11, 2, 12]
    reader.close()


def test_names_with_capitals_quotes_and_spaces(database: PostgresDatabase) -> None:
    database.run('create schema "A.b"')
    database.run('create table "A.b"."My ""t""" ("Id" bigint primary key, "a b.c" text)')
    database.run('create publication "Orders, ""new""" for table "A.b"."My ""t"""')
    reader = opened(database, publication='Orders, "new"')
    database.run('insert into "A.b"."My ""t""" values (1, \'x\')')
    assert [(row["Id"], row["a b.c"]) for row in read(reader)] == [(1, "x")]
    reader.close()


def test_columns_that_spark_cannot_tell_apart_are_refused(database: PostgresDatabase) -> None:
    database.run('create table two (id bigint primary key, "A" int, a int)')
    database.run("create publication two for table two")
    with pytest.raises(ConfigurationError, match=r"whose names are taken.*: a"):
        opened(database, publication="two")


# --- what an update says --------------------------------------------------------------------------


def test_a_change_of_the_key_has_the_old_key(database: PostgresDatabase) -> None:
    reader = opened(database)
    database.run("insert into t values (1, 'a')")
    database.run("update t set text = 'b' where id = 1")
    database.run("update t set id = 2 where id = 1")
    database.run("alter table t replica identity full")
    database.run("update t set text = 'c' where id = 2")
    found = [(row["op"], row["id"], row["text"], row["_old"]) for row in read(reader)]
    assert found == [
        ("insert", 1, "a", None),
        ("update", 1, "b", {"id": 1, "text": None}),
        ("update", 2, "b", {"id": 1, "text": None}),
        ("update", 2, "c", {"id": 2, "text": "b"}),
    ]
    reader.close()


def test_a_large_value_that_an_update_leaves_alone_is_named(database: PostgresDatabase) -> None:
    """The value is not in the log, and the job goes on."""
    database.run("alter table t add n int")
    reader = opened(database)
    database.run(f"insert into t values (1, ({BIG}), 0)")
    database.run("update t set n = 1")
    database.run("alter table t replica identity full")
    database.run("update t set n = 2")
    rows = read(reader)
    assert [(row["op"], row["n"], row["_unchanged"]) for row in rows] == [
        ("insert", 0, []),
        ("update", 1, ["text"]),
        ("update", 2, []),
    ]
    assert rows[1]["text"] is None and rows[0]["text"] == rows[2]["text"] != ""
    reader.close()


def test_a_large_key_is_always_there(database: PostgresDatabase) -> None:
    """A key that is stored outside of its row."""
    database.run("create table large (id text primary key, n int)")
    database.run("alter table large alter id set storage external")
    database.run("create publication large for table large")
    reader = opened(database, publication="large")
    series = "generate_series(1, 75) i"
    database.run(f"insert into large select string_agg(md5(i::text), ''), 0 from {series}")
    database.run("update large set n = 1")
    first, second = read(reader)
    assert len(first["id"]) == 2_400 and second["_unchanged"] == []
    assert second["id"] == second["_old"]["id"] == first["id"]
    reader.close()


def test_positions_grow_from_row_to_row(database: PostgresDatabase) -> None:
    """In the order of commits, across transactions at one time."""
    reader = opened(database)
    with psycopg.connect(database.url) as first, psycopg.connect(database.url) as second:
        first.execute("insert into t values (1, 'first to begin')")
        second.execute("insert into t values (2, 'a'), (3, 'b')")
        second.commit()
        first.execute("insert into t values (4, 'last to end')")
        first.commit()
    rows = read(reader)
    assert [row["id"] for row in rows] == [2, 3, 1, 4]
    places = [(row["_lsn"], row["_row"]) for row in rows]
    assert places == sorted(places) and len(set(places)) == 4
    reader.close()


def test_a_transaction_of_many_rows_in_many_epochs(database: PostgresDatabase) -> None:
    reader = opened(database)
    database.run("insert into t select i, 'x' from generate_series(1, 50000) i")
    insert(database, "t", [{"id": 0}])
    reader.accept(reader.poll())
    ids: list[int] = []
    while (split := reader.plan(7_001)) is not None:
        ids += reader._tables(split)[0].column("id").to_pylist()
        if len(ids) == 7_001 * 3:
            reader = again(database, reader, acknowledges=False)
            reader.accept(reader.poll())
    reader.accept(reader.poll())
    while (split := reader.plan(7_001)) is not None:
        ids += reader._tables(split)[0].column("id").to_pylist()
    assert ids == [*range(1, 50001), 0]
    reader.close()


# --- what servers, databases and roles say of texts -----------------------------------------------

SETTINGS: Mapping[str, str] = {
    "bytea_output": "escape",
    "extra_float_digits": "0",
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kolkata",
    "client_encoding": "LATIN1",
    "search_path": "pg_temp",
    "lc_monetary": "C",
    "statement_timeout": "60s",
}


def test_values_do_not_depend_on_settings_of_the_server(database: PostgresDatabase) -> None:
    database.run(
        "alter table t add b bytea, add f double precision, add r real, add d date, "
        "add at timestamp, add z timestamptz, add i interval, add k regclass, add m money"
    )
    reader = opened(database)
    place = f"alter database {database.name} set"
    database.run(
        "insert into t values (1, 'é ☃', '\\x00ff5c', 0.1::float8 + 0.2, 0.1, '2026-12-31', "
        "'2026-01-02 03:04:05', '2026-01-02 03:04:05+00', '1 day 02:00', 'public.t', 12.5)"
    )
    for name, value in SETTINGS.items():
        database.run(f"{place} {name} = '{value}'")
    reader = again(database, reader)
    [row] = read(reader)
    assert (row["b"], row["f"], row["text"]) == (b"\x00\xff\\", 0.1 + 0.2, "é ☃")
    assert row["r"] == pytest.approx(0.1) and row["d"].isoformat() == "2026-12-31"
    assert row["at"] == row["z"] and row["at"].utcoffset() == timedelta(0)
    assert (row["at"].day, row["at"].month, row["at"].hour) == (2, 1, 3)
    assert (row["i"], row["k"], row["m"]) == ("1 day 02:00:00", "public.t", "$12.50")
    assert reader._connection is not None
    timeout = reader._connection.exec_driver_sql("show statement_timeout").scalar()
    assert timeout == "0", "a long log takes its time"
    reader.close()


def test_a_database_without_an_encoding_is_refused(database: PostgresDatabase) -> None:
    name = f"{database.name}_ascii"
    database.run(f"create database {name} encoding 'SQL_ASCII' locale 'C' template template0")
    ascii = PostgresDatabase(database.port, name)
    ascii.run("create table t (id bigint primary key)")
    ascii.run("create publication p for table t")
    with pytest.raises(ConfigurationError, match="SQL_ASCII"):
        opened(ascii)


def test_texts_of_other_types_are_no_values() -> None:
    import pyarrow as pa

    for kind, text in ((pa.bool_(), "true"), (pa.binary(), "ab"), (pa.date32(), "infinity")):
        with pytest.raises(ValueError):
            reads(kind)(text)
