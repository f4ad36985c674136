"""The new rows of a table, by a growing column, from real databases."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_jet import Secret, sources, tables
from dagster_jet.connectors.sql.table_reader import TableRowsReader
from dagster_jet.errors import (
    ConfigurationError,
    JetError,
    Reaction,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.testing.check_source import check_source
from tests.integration.connectors.secret_urls import as_secret
from tests.long import long
from tests.servers import launch, own_folder, stop
from tests.servers import mariadb as maria_server
from tests.servers import postgres as postgres_server
from tests.servers.mariadb import mariadb
from tests.servers.postgres import PASSWORD, PostgresDatabase, postgres
from tests.servers.proxy import Proxy


@pytest.fixture(scope="module")
def database() -> PostgresDatabase:
    return postgres()


def rows_of(url: str | Secret, table: str = "t", column: str = "id") -> Any:
    return sources.sql(as_secret(url) if isinstance(url, str) else url, table=table, column=column)


def opened(url: str, *names: str) -> TableRowsReader:
    reader: TableRowsReader = rows_of(url, *names).open("j", "in", None)
    return reader


def read(reader: TableRowsReader, max_rows: int = 1_000) -> list[tuple[Any, ...]]:
    """All that is there now."""
    reader.accept(reader.poll())
    rows: list[tuple[Any, ...]] = []
    while (split := reader.plan(max_rows)) is not None:
        rows += [tuple(row.values()) for row in reader.table(split).to_pylist()]
    return rows


def test_the_contract_is_kept(
    database: PostgresDatabase, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table contract (number bigserial primary key, id bigint, text text)")

    def send(rows: list[dict[str, Any]]) -> None:
        with psycopg.connect(database.url) as connection, connection.cursor() as cursor:
            cursor.executemany(
                "insert into contract (id, text) values (%s, %s)",
                [(row["id"], row["text"]) for row in rows],
            )

    with Proxy(database.port) as proxy:
        monkeypatch.setenv("JET_TEST_ROWS_URL", database.through(proxy.port))
        check_source(
            lambda: rows_of(Secret("JET_TEST_ROWS_URL"), "contract", "number").at_start(
                "j", "in", on_one_host=True
            ),
            send,
            spark,
            outages={"a connection that is cut": proxy.cut},
            secrets=(PASSWORD,),
            many=1_000,  # those of more than a page are below
        )


def test_it_goes_on_behind_its_position(database: PostgresDatabase) -> None:
    database.run("create table t (id bigint primary key, text text)")
    database.run("insert into t select n, 'a' from generate_series(1, 25000) n")
    reader = opened(database.url)
    reader.accept(reader.poll())
    assert reader.waiting().items == 25_000, "more than a page"
    split = reader.plan(7)
    assert split is not None and len(split) == 7
    position = reader.position()
    reader.close()
    database.run("insert into t values (25001, 'b')")
    again = opened(database.url)
    again.restore(position, None)
    ids = [row[0] for row in read(again)]
    assert ids == list(range(8, 25_002))
    assert read(again) == []
    again.close()


def test_what_it_cannot_see_it_does_not_read(database: PostgresDatabase) -> None:
    """The source reads only new numbers, as its label says: not a number that is committed late, an
    update, or a deletion."""
    database.run("create table late (id bigint primary key, text text)")
    source = rows_of(database.url, "late")
    assert "no updates" in source.describe()["sees"]
    reader = opened(database.url, "late")
    with psycopg.connect(database.url) as slow:
        slow.execute("insert into late values (1, 'slow')")
        database.run("insert into late values (2, 'fast')")
        assert read(reader) == [(2, "fast")]
        slow.commit()
    database.run("update late set text = 'new' where id = 2")
    database.run("delete from late where id = 1")
    database.run("insert into late values (3, 'next')")
    assert read(reader) == [(3, "next")]
    reader.close()


TIME = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc)
VALUES = (Decimal("12.50"), 0.1, True, "é", date(2026, 1, 2), b"\x00\xff")


def test_values_and_times_of_postgres(database: PostgresDatabase) -> None:
    database.run(
        "create table typed (at timestamptz unique not null, price numeric(10, 2), number float8, "
        "flag boolean, text text, day date, raw bytea, more jsonb)"
    )
    insert = "insert into typed values (%s, %s, %s, %s, %s, %s, %s, '[1]')"
    database.run(insert, TIME, *VALUES)
    reader = opened(database.url, "typed", "at")
    assert read(reader) == [(TIME, *VALUES, "[1]")]
    again = opened(database.url, "typed", "at")
    again.restore(reader.position(), None)
    assert read(again) == []
    reader.close()
    again.close()


def test_values_of_mariadb() -> None:
    database = mariadb()
    database.run(
        "create table typed (id bigint primary key, price decimal(10, 2), number double, "
        "flag boolean, text longtext, day date, raw longblob, at datetime(6))"
    )
    insert = "insert into typed values (1, %s, %s, %s, %s, %s, %s, %s)"
    database.run(insert, *VALUES, TIME.replace(tzinfo=None))
    reader = opened(database.url, "typed")
    assert read(reader) == [(1, *VALUES, TIME)]
    reader.close()


FLOATS = (1234567.875, 16777215.0, -0.0001220703125, 3.4028234663852886e38, None)


def test_floats_of_mariadb_have_all_their_digits(spark: Any) -> None:
    database = mariadb()
    database.run("create table floats (id bigint primary key, f float, rounds float(9, 3))")
    for number, value in enumerate(FLOATS):
        database.run("insert into floats values (%s, %s, 12345.678)", number, value)
    wanted = [(number, value, 12345.677734375) for number, value in enumerate(FLOATS)]
    reader = opened(database.url, "floats")
    assert read(reader) == wanted
    database.run("insert into floats values (9, 0.1, null)")
    assert read(reader) == [(9, 0.10000000149011612, None)], "the number that the table has"
    reader.close()
    frame = tables.sql(as_secret(database.url), table="floats").frame(spark)
    assert [tuple(row) for row in frame.orderBy("id").collect()][:-1] == wanted


UUID = "6dd0b054-0000-0000-0000-000000000000"
TEXTS = {
    "numeric[]": ("'{1.50,null}'", "{1.50,NULL}"),
    "uuid[]": (f"'{{{UUID}}}'", f"{{{UUID}}}"),
    "date[]": ("'{2026-01-02}'", "{2026-01-02}"),
    "bytea[]": ("""'{"\\\\x01"}'""", """{"\\\\x01"}"""),
    "jsonb": ("'true'", "true"),
    "json": ("""'"abc"'""", '"abc"'),
    "jsonb not null": ("'null'", "null"),
    "jsonb default null": ("""'{"a": 12345678901234567.25}'""", '{"a": 12345678901234567.25}'),
    "interval": ("'1 mon'", "1 mon"),
    "uuid": (f"'{UUID}'", UUID),
    "numeric": ("1.50", "1.50"),
    "time": ("'03:04:05.5'", "03:04:05.5"),
    "bit(3)": ("b'101'", "101"),
    "int4range": ("'[1,3)'", "[1,3)"),
    "inet": ("'127.0.0.1'", "127.0.0.1"),
    "cidr": ("'10.0.0.0/8'", "10.0.0.0/8"),
    "char(3)": ("'a'", "a  "),
    "varchar(3)": ("'a '", "a "),
}
"""Types of PostgreSQL without a type of Spark: a literal, and the server's own text."""


def test_what_becomes_text_is_the_text_of_postgres(database: PostgresDatabase, spark: Any) -> None:
    columns = [f"c{number} {kind}" for number, kind in enumerate(TEXTS)]
    database.run(f"create table texts (id bigint primary key, {', '.join(columns)})")
    database.run(f"insert into texts values (1, {', '.join(sql for sql, _ in TEXTS.values())})")
    database.run("insert into texts (id, c6) values (2, '0')")
    reader = opened(database.url, "texts")
    wanted = (1, *(text for _, text in TEXTS.values()))
    empty = (2, *("0" if kind == "jsonb not null" else None for kind in TEXTS))
    assert read(reader) == [wanted, empty]
    reader.close()
    frame = tables.sql(as_secret(database.url), table="texts").frame(spark)
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [wanted, empty]


@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_values_of_mariadb_that_spark_lacks(spark: Any) -> None:
    database = mariadb()
    database.run(
        "create table odd (id bigint unsigned primary key, bits bit(1), more bit(10), "
        "place point, span time(1), year year, one enum('a', 'b'), big decimal(65, 30), doc json)"
    )
    database.run(
        "insert into odd values (18446744073709551615, b'1', b'1000000001', point(1, 2), "
        "'-03:04:05.5', 2026, 'b', 1.5, '{\"a\": 0.10}'), (1, b'0', null, null, null, null, null, "
        "null, null)"
    )
    reader = opened(database.url, "odd")
    [empty, odd] = read(reader)
    assert empty == (1, b"\x00", *[None] * 7)
    assert (odd[:3], odd[4:]) == (
        (2**64 - 1, b"\x01", b"\x02\x01"),
        ("-03:04:05.5", "2026", "b", f"1.5{'0' * 29}", '{"a": 0.10}'),
    )
    assert odd[3] == database.run("select place from odd where id > 1")[0][0]
    assert reader.position() == {"last": 2**64 - 1, "table": "odd", "column": "id"}
    reader.close()
    frame = tables.sql(as_secret(database.url), table="odd").frame(spark)
    assert dict(frame.dtypes)["id"] == "decimal(20,0)"
    assert [row.bits for row in frame.orderBy("id").collect()] == [b"\x00", b"\x01"]


def refused_value(url: str, table: str) -> str:
    reader = opened(url, table)
    with pytest.raises(SourceError) as raised:
        read(reader)
    reader.close()
    assert "Correct the value in the table" in str(raised.value)
    return str(raised.value)


def test_a_value_that_no_type_of_spark_holds_is_named(
    database: PostgresDatabase, tmp_path: Path
) -> None:
    database.run("create table nan (id bigint primary key, price numeric(10, 2))")
    database.run("insert into nan values (1, 1), (2, 'NaN')")
    assert "column price of the table 'nan' has the value Decimal('NaN')" in refused_value(
        database.url, "nan"
    )
    database.run("create table unending (id bigint primary key, at timestamptz)")
    database.run("insert into unending values (1, 'infinity')")
    assert "'infinity'" in refused_value(database.url, "unending")

    other = mariadb()
    other.run("create table never (id bigint primary key, day date, at datetime)")
    other.run("insert into never values (1, '2026-01-02', '0000-00-00'), (2, '0000-00-00', null)")
    assert "column day of the table 'never' has the value '0000-00-00'" in refused_value(
        other.url, "never"
    )
    other.run("create table flags (id bigint primary key, flag tinyint(1))")
    other.run("insert into flags values (1, 1), (2, 0), (3, null), (4, 2)")
    assert "column flag of the table 'flags' has the value 2" in refused_value(other.url, "flags")
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("create table t (id integer primary key, text text, number integer)")
        made.execute("insert into t values (1, 'a', 1), (2, x'00', 2)")
        made.execute("create table flags (id integer primary key, flag boolean)")
        made.execute("insert into flags values (1, true), (2, 'false')")
    assert r"column text of the table 't' has the value b'\x00'" in refused_value(
        f"sqlite:///{path}", "t"
    )
    assert "column flag of the table 'flags' has the value 'false'" in refused_value(
        f"sqlite:///{path}", "flags"
    )


def test_values_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("create table t (id integer primary key, at timestamp, day date, text text)")
        made.execute("insert into t values (1, '2026-01-02 03:04:05.000678', '2026-01-02', 'é')")
    reader = opened(f"sqlite:///{path}")
    assert read(reader) == [(1, TIME, date(2026, 1, 2), "é")]
    reader.close()


def test_a_position_is_of_its_table_and_column(tmp_path: Path) -> None:
    """The rows of another table up to that value would be skipped."""
    path, url = tmp_path / "a.db", f"sqlite:///{tmp_path}/a.db"
    with closing(sqlite3.connect(path)) as made, made:
        for table in ("t", "other"):
            made.execute(f"create table {table} (id integer primary key, number integer unique)")
            made.execute(f"insert into {table} values (1, 3), (2, 4)")
    reader = opened(url)
    nothing = reader.position()
    assert read(reader) == [(1, 3), (2, 4)]
    position = reader.position()
    reader.close()
    for names, said in ((("other",), "'other' by 'id'"), (("t", "number"), "'t' by 'number'")):
        changed = opened(url, *names)
        with pytest.raises(SourceError, match=f"now reads {said}.* Give the source another name"):
            changed.restore(position, None)
        changed.restore(nothing, None)
        assert len(read(changed)) == 2
        changed.close()
    for known in (position, {"last": 2}):
        again = opened(url)
        again.restore(known, None)
        assert read(again) == [], "also of an older version"
        again.close()


def test_a_writer_of_sqlite_is_not_locked_out(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, timeout=0)) as writer:
        writer.execute("create table t (id integer primary key)")
        reader = opened(f"sqlite:///{path}")
        for number in range(3):
            with writer:
                writer.execute("insert into t values (?)", [number])
            assert read(reader) == [(number,)]
        reader.close()


def test_what_a_start_finds(database: PostgresDatabase) -> None:
    database.run("create table found (id bigint primary key, n bigint, text text unique)")

    def failure(table: str, column: str, url: str = "") -> JetError:
        with pytest.raises(JetError) as caught:
            rows_of(url or database.url, table, column).at_start("j", "in", on_one_host=True)
        assert PASSWORD not in str(caught.value)
        return caught.value

    assert "there is no table 'no'" in str(failure("no", "id"))
    assert "has no column 'no'" in str(failure("found", "no"))
    assert "has no unique index" in str(failure("found", "n"))
    assert "is text" in str(failure("found", "text"))
    assert failure("found", "id", database.through(1)).reaction is Reaction.RETRY
    with pytest.raises(ConfigurationError, match="column"):
        rows_of(database.url, "t", "")


@pytest.mark.parametrize("kind", ["postgres", pytest.param("mariadb", marks=long)])
def test_a_server_that_is_killed_in_the_middle_is_asked_again(kind: str) -> None:
    """The server dies between two pages of rows; the reader keeps its rows, and nothing is read
    twice."""
    server, folder = {"postgres": postgres_server, "mariadb": maria_server}[kind], own_folder(kind)
    running = launch(kind, folder, server.prepared(folder))
    try:
        database = server.new_database(running)
        database.run("create table t (id bigint primary key, text varchar(9))")
        database.run("insert into t values (1, 'a'), (2, 'b')")
        reader = opened(database.url)
        reader.accept(reader.poll())
        stop(running, signal.SIGKILL)
        with pytest.raises(SourceUnavailableError, match="cannot be read"):
            reader.poll()
        running = launch(kind, folder, server.prepared(folder))
        database.run("insert into t values (3, 'c')")
        assert [row[0] for row in read(reader)] == [1, 2, 3]
        reader.close()
    finally:
        stop(running)
