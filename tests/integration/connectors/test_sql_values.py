"""Values and modes of table sinks on real databases, and the sentences for what does not fit."""

from __future__ import annotations

import pickle
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pytest

from dagster_jet import Reaction, Secret, sinks, sources, tables
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.staging import Segment
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    JetError,
    PipelineError,
    SinkMismatchError,
    SinkUnavailableError,
)
from tests.integration.connectors.secret_urls import as_secret
from tests.integration.connectors.sql_places import MadeSink
from tests.servers import free_port
from tests.servers.mariadb import mariadb
from tests.servers.postgres import PASSWORD, PostgresDatabase, postgres

ROWS = pa.schema([("id", pa.int64()), ("text", pa.string())])
SERVERS: dict[str, Any] = {"mariadb": mariadb, "postgresql": postgres}


class Sink:
    """A sink as an execution uses it."""

    def __init__(self, folder: Path, url: str, **options: Any) -> None:
        folder.mkdir()
        self.made = MadeSink.of(folder, url, **options)
        self.sink = self.made()
        self.epoch = 0

    def start(self) -> Any:
        self.sink = self.sink.at_start("j", "out", on_one_host=True)
        self.sink.check("j", "out", is_new_job=True)
        return self.sink

    def write(self, table: pa.Table) -> None:
        self.epoch += 1
        writer = self.sink.open_writer(TransactionId("j", "out", 1, 1, self.epoch, 0, "a"))
        for batch in table.to_batches():
            writer.write(batch)
        artifacts = writer.prepare()
        self.sink.open_committer("j", "out").commit(
            artifacts, CommitContext("j", "out", 1, 1, recovering=False)
        )


@pytest.fixture
def database() -> PostgresDatabase:
    return postgres()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Sink] = []

    def new(url: str, **options: Any) -> Sink:
        made.append(Sink(tmp_path / str(len(made)), url, **options))
        return made[-1]

    yield new
    for one in made:
        one.made.close()


VALUES = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "small": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
        "real": pa.array([0.5, -3.0, None], pa.float32()),
        "double": pa.array([0.1, -1e300, None], pa.float64()),
        "price": pa.array([Decimal("-0.01"), Decimal("12345678.90"), None], pa.decimal128(10, 2)),
        "text": pa.array(["é ☃ 🜚 \\. \n\t\"',", "", None], pa.string()),
        "flag": pa.array([True, False, None], pa.bool_()),
        "at": pa.array(
            [
                datetime(1969, 12, 31, 23, 59, 59, 999_999, timezone.utc),
                datetime(2200, 1, 1, 0, 0, 0, 1, timezone.utc),
                None,
            ],
            pa.timestamp("us", "UTC"),
        ),
        "day": pa.array([date(1001, 1, 1), date(9999, 12, 31), None], pa.date32()),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    }
)


def test_every_type_into_a_table_that_postgres_has_created(
    make: Any, database: PostgresDatabase
) -> None:
    sink = make(database.url, create_table=True)
    sink.start()
    sink.write(VALUES)
    sink.write(VALUES.slice(0, 0))
    found = database.run("select * from results order by id")
    expected = [tuple(row.values()) for row in VALUES.to_pylist()]
    as_json = {1: "[1, null]", 2: "[]", 3: None}
    assert found == [(*row[:-1], as_json[row[0]]) for row in expected]
    sink.sink.at_start("j", "out", on_one_host=True).takes(
        VALUES.schema
    )  # what it has created fits


def test_every_type_into_a_table_that_mariadb_has_created(make: Any) -> None:
    database = mariadb()
    sink = make(database.url, create_table=True)
    sink.start()
    sink.write(VALUES)
    found = database.run("select * from results order by id")
    for row, wanted in zip(found, VALUES.to_pylist(), strict=True):
        at = wanted["at"] and wanted["at"].replace(tzinfo=None)
        assert row[7] == at and row[0] == wanted["id"] and row[5] == wanted["text"]
        assert row[4] == wanted["price"] and row[9] == wanted["raw"] and row[8] == wanted["day"]
        assert row[3] == wanted["double"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_segment_of_the_first_epoch_is_told_and_not_counted_as_committed(
    make: Any, tmp_path: Path, lost: int
) -> None:
    """The table does not exist yet: its columns are those of the first rows."""
    url = f"sqlite:///{tmp_path}/results.db"
    sink = make(url, create_table=True).start()
    artifacts = []
    for shard in range(2):
        writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, shard, "a"))
        writer.write(pa.record_batch([[shard], [f"row {shard}"]], schema=ROWS))
        artifacts += writer.prepare()
    committer = sink.open_committer("j", "out")
    Segment(committer.area, artifacts[lost]).remove()
    context = CommitContext("j", "out", 1, 1, recovering=False)
    for _ in range(2):
        with pytest.raises(ArtifactLostError):
            committer.commit(artifacts, context)
        assert not committer.has_committed(artifacts, context)
    committer.commit(artifacts, replace(context, accept_loss=True))
    with sqlite3.connect(tmp_path / "results.db") as connection:
        rows = connection.execute("select id, text from results").fetchall()
    assert rows == [(1 - lost, f"row {1 - lost}")]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_upserts_and_deletions(make: Any, kind: str, tmp_path: Path) -> None:
    import sqlalchemy as sa

    server = SERVERS.get(kind)
    url = f"sqlite:///{tmp_path}/a.db" if server is None else server().url
    upsert = make(url, mode="upsert", key="id", create_table=True)
    upsert.start()
    upsert.write(pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]}))
    upsert.write(pa.table({"id": [2, 4], "text": ["B", None]}))
    delete = make(url, mode="delete", key="id")
    delete.start()
    delete.write(pa.table({"id": [1, 99], "text": ["ignored", "ignored"]}))
    engine = sa.create_engine(upsert.sink.place.parsed())
    with engine.connect() as connection:
        found = connection.exec_driver_sql("select id, text from results order by id").all()
    engine.dispose()
    assert [tuple(row) for row in found] == [(2, "B"), (3, "c"), (4, None)]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
@pytest.mark.parametrize("mode", ["append", "upsert", "delete"])
def test_names_with_percent_signs(make: Any, kind: str, mode: str, tmp_path: Path) -> None:
    """Failed before: some were doubled, by drivers or by SQLAlchemy."""
    import sqlalchemy as sa

    server = SERVERS.get(kind)
    url = f"sqlite:///{tmp_path}/a.db" if server is None else server().url
    rows = pa.table({"%": [1, 2, 3], "100%s": ["%", "%%", "%s"], "%(n)s": [0, 1, 2]})
    first = make(url, mode="upsert", key="%", create_table=True, table="50%")
    first.start()
    first.write(rows.slice(0, 2))
    sink = make(url, mode=mode, table="50%", **({} if mode == "append" else {"key": "%"}))
    sink.start()
    sink.write(rows.slice(2) if mode == "append" else rows)
    engine = sa.create_engine(sink.sink.place.parsed())
    with engine.connect() as connection:
        found = connection.execute(sa.select(sink.sink.place.clause(*rows.column_names))).all()
    engine.dispose()
    expected = [] if mode == "delete" else [tuple(row.values()) for row in rows.to_pylist()]
    assert sorted(map(tuple, found)) == expected


def test_settings_of_a_session_are_made_once_it_is_open(database: PostgresDatabase) -> None:
    """PgBouncer lets nobody in who gives `options` while connecting."""
    with SqlPlace(as_secret(database.url), "t").connected() as connection:
        asked = "select name, setting, source from pg_settings where name in "
        names = "('lock_timeout', 'idle_in_transaction_session_timeout', 'TimeZone')"
        found = connection.exec_driver_sql(f"{asked}{names} order by name").all()
    assert [tuple(row) for row in found] == [
        ("TimeZone", "UTC", "session"),
        ("idle_in_transaction_session_timeout", "120000", "session"),
        ("lock_timeout", "20000", "session"),
    ]


@pytest.mark.parametrize("create_table", [True, False])
@pytest.mark.parametrize(("kind", "year"), [("postgresql", 32767), ("mariadb", 9999)])
def test_the_last_moment_is_written_and_the_next_refused(
    make: Any, kind: str, year: int, create_table: bool
) -> None:
    """Failed before on PostgreSQL: such a row was decided, and no start could commit it."""
    database = SERVERS[kind]()
    time = {"postgresql": "timestamptz", "mariadb": "datetime(6)"}[kind]
    if not create_table:
        database.run(f"create table results (id bigint, day date, at {time})")
    next_day = {9999: 2_932_897, 32767: 11_248_738}[year]
    next_us = next_day * 86_400_000_000
    rows = pa.record_batch(
        {
            "id": [1, 2, 3, 4],
            "day": pa.array([next_day - 1, None, next_day, None], pa.int32()).cast(pa.date32()),
            "at": pa.array([None, next_us - 1, None, next_us]).cast(pa.timestamp("us", "UTC")),
        }
    )
    sink = make(database.url, create_table=create_table)
    reasons = {n: one.reason for n, one in sink.start().refused(rows).items()}
    assert list(reasons) == [2, 3]
    for n, name in ((2, "day"), (3, "at")):
        assert reasons[n].endswith(f"{name} is after the year {year}")
    sink.write(pa.table(rows.slice(0, 2).columns, rows.schema.names))
    shown = [f"{year}-12-31", f"{year}-12-31 23:59:59.999999"]
    [day], [at] = database.run(
        "select coalesce(cast(day as char(99)), cast(at as char(99))) from results order by id"
    )
    assert day.strip() == shown[0] and at.strip().removesuffix("+00") == shown[1]


# --- what does not fit ----------------------------------------------------------------------------


def told(make: Any, url: str, **options: Any) -> JetError:
    with pytest.raises(JetError) as caught:
        make(url, **options).start().takes(ROWS)
    assert PASSWORD not in str(caught.value)
    return caught.value


def test_a_missing_table(make: Any, database: PostgresDatabase) -> None:
    error = told(make, database.url)
    assert isinstance(error, ConfigurationError)
    assert "there is no table 'results'" in str(error) and "create_table=True" in str(error)


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("small smallint", 2**15, None),
        ("small tinyint unsigned", -1, None),
        ("small int unsigned", 2**15 - 1, 2**15 - 1),
        ("small bigint unsigned not null auto_increment unique", 0, 0),
        ("text varchar(3)", "four", None),
        ("text varchar(3)", "\\_é", "\\_é"),
        ("text enum('a', 'b')", "c", None),
        ("text enum('a', 'b')", "b", "b"),
        ("text char(4) character set latin1", "🜚", None),
        ("at timestamp(6) null", datetime(2200, 1, 1, tzinfo=timezone.utc), None),
        ("at datetime(6)", datetime(2200, 1, 1, 0, 0, 0, 1), datetime(2200, 1, 1, 0, 0, 0, 1)),
    ],
)
def test_a_lax_mariadb_keeps_a_value_or_refuses_it(
    make: Any, column: str, value: Any, kept: Any
) -> None:
    """Where the server's own settings would have it change the value, too."""
    database = mariadb()
    database.run(f"create table results (id bigint, {column})")
    lax = "?init_command=" + quote("set sql_mode = 'NO_BACKSLASH_ESCAPES'")
    sink = make(database.url + lax)
    sink.start()
    rows = pa.table({"id": [1], column.partition(" ")[0]: pa.array([value])})
    if kept is not None:
        sink.write(rows)
        assert database.run("select * from results") == [(1, kept)]
        return
    with pytest.raises(SinkMismatchError):
        sink.write(rows)
    assert database.run("select * from results") == []


TIMES = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.float64())])


@pytest.mark.parametrize(
    ("kind", "columns", "says"),
    [
        ("mariadb", "at datetime, number double", r"at is datetime, .* datetime\(6\) keeps them"),
        ("mariadb", "at timestamp(3), number double", r"fractions of a second would be rounded"),
        ("mariadb", "at datetime(6), number double(10, 2)", "number is double.*rounds to 2 digits"),
        ("mariadb", "at datetime(6), number double", None),
        ("postgresql", "at timestamptz(3), number float8", r"would be rounded away"),
        ("postgresql", "at timestamp, number float8", None),
        ("postgresql", "at timestamptz(6), number float8", None),
    ],
)
def test_what_would_be_rounded_is_refused(
    make: Any, kind: str, columns: str, says: str | None
) -> None:
    database = SERVERS[kind]()
    database.run(f"create table results ({columns})")
    sink = make(database.url).start()
    if says is None:
        assert sink.takes(TIMES)
        return
    with pytest.raises(PipelineError, match=says):
        sink.takes(TIMES)


LIST, STRUCT = pa.list_(pa.string()), pa.struct([("a", pa.int64())])
PARSED: dict[str, tuple[Any, Any, Any]] = {
    "tags text[]": (pa.string(), "{a,NULL}", ["a", None]),
    "more jsonb": (STRUCT, {"a": 1}, {"a": 1}),
    "list json": (LIST, ["a", None], ["a", None]),
    "id uuid": (pa.string(), "0" * 31 + "1", UUID(int=1)),
    "mood mood": (pa.string(), "sad", "sad"),
    "at interval": (pa.string(), "1 day", timedelta(days=1)),
}
"""Values in the rows and as a plain client reads them, by column."""


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "n"}, {"transactions": "held"}])
def test_postgres_parses_what_has_a_type_of_its_own(
    make: Any, database: PostgresDatabase, options: dict[str, Any]
) -> None:
    database.run("create type mood as enum ('sad', 'ok')")
    database.run(f"create table results (n bigint primary key, {', '.join(PARSED)})")
    sink = make(database.url, **options)
    names = [column.partition(" ")[0] for column in PARSED]
    kinds, written, wanted = zip(*PARSED.values(), strict=True)
    schema = pa.schema([("n", pa.int64()), *zip(names, kinds, strict=True)])
    sink.start().takes(schema)
    nothing = dict.fromkeys(names)
    rows = [{"n": 1, **dict(zip(names, written, strict=True))}, {"n": 2, **nothing}]
    sink.write(pa.Table.from_pylist(rows, schema))
    found = database.run("select * from results order by n")
    assert found == [(1, *wanted), (2, *nothing.values())]


@pytest.mark.parametrize(
    ("kind", "column", "rows"),
    [
        ("postgresql", "v text[]", LIST),
        ("postgresql", "v bigint[]", pa.list_(pa.int64())),
        ("postgresql", "v text[]", pa.int64()),
        ("postgresql", "v uuid", pa.int64()),
        ("postgresql", "v uuid", STRUCT),
        ("postgresql", "v mood", pa.bool_()),
        ("postgresql", "v jsonb", pa.float64()),
        ("postgresql", "v interval", LIST),
        ("mariadb", "v enum('a')", LIST),
        ("mariadb", "v enum('a')", pa.int64()),
    ],
)
def test_what_cannot_be_parsed_is_refused_at_the_start(
    make: Any, kind: str, column: str, rows: pa.DataType
) -> None:
    database = SERVERS[kind]()
    if "mood" in column:
        database.run("create type mood as enum ('sad', 'ok')")
    database.run(f"create table results ({column})")
    sink = make(database.url).start()
    with pytest.raises(PipelineError, match=r"the column v is .*, and the rows have") as told:
        sink.takes(pa.schema([("v", rows)]))
    assert not pa.types.is_nested(rows) or "are written as JSON" in str(told.value)


@pytest.mark.parametrize(("engine", "transactions"), [("MyISAM", "roll-forward"), ("Aria", "held")])
def test_a_table_without_transactions_is_refused(make: Any, engine: str, transactions: str) -> None:
    database = mariadb()
    database.run(f"create table results (id bigint, text longtext) engine={engine}")
    error = told(make, database.url, transactions=transactions)
    assert f"'results' has the engine {engine}, which has no transactions" in str(error)
    [cure] = re.findall("alter table .*", str(error))
    database.run(cure)
    assert make(database.url, transactions=transactions).start() is not None
    database.run(f"alter table dagster_jet_epochs engine={engine}")
    assert "'dagster_jet_epochs' has the engine" in str(told(make, database.url))


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("id bigint", {}, "the table has no column text; it has id"),
        ("id integer, text text", {}, "the column id is integer, and the rows have int64"),
        ("id bigint, text bytea", {}, "the column text is bytea, and the rows have string"),
        ("id bigint, text text, x int not null", {}, "needs a value for x"),
        ("id bigint, text text", {"mode": "upsert", "key": "id"}, "no unique index"),
        ("id bigint, text text", {"mode": "upsert", "key": "no"}, "the rows have no column no"),
    ],
)
def test_a_table_that_does_not_fit(
    make: Any, database: PostgresDatabase, columns: str, options: dict[str, Any], says: str
) -> None:
    database.run(f"create table results ({columns})")
    error = told(make, database.url, **options)
    assert isinstance(error, PipelineError) and says in str(error)


def test_a_default_or_an_identity_needs_no_value(make: Any, database: PostgresDatabase) -> None:
    database.run(
        "create table results (n bigserial, m int generated always as identity, "
        "d int not null default 1, id bigint, text text)"
    )
    assert make(database.url).start().takes(ROWS)


def test_missing_rights(make: Any, database: PostgresDatabase) -> None:
    database.run("create table results (id bigint primary key, text text)")
    database.run(f"create role {database.name} login password '{PASSWORD}'")
    database.run(f"grant select, insert on results to {database.name}")
    url = database.url.replace("jet:", f"{database.name}:")
    error = told(make, url, mode="upsert", key="id")
    assert "this user may not UPDATE the table 'results'" in str(error)
    error = told(make, url)
    assert "this user may not create the table dagster_jet_epochs" in str(error)
    [ddl] = re.findall("CREATE TABLE .*", str(error))
    database.run(ddl)
    database.run(f"grant select, insert, update on dagster_jet_epochs to {database.name}")
    assert make(url).start().takes(ROWS), "somebody else has created it"
    error = told(make, database.url.replace(PASSWORD, "another"))
    assert error.reaction is Reaction.FAIL


def test_mariadb_takes_a_key_of_several_columns(make: Any) -> None:
    # Failed before: what tries the rights left a column out that has no default.
    database = mariadb()
    exact = "varchar(9) character set utf8mb4 collate utf8mb4_nopad_bin"
    database.run(f"create table results (id bigint, text {exact}, primary key (id, text))")
    sink = make(database.url, mode="upsert", key=["id", "text"])
    sink.start()
    for _ in range(2):
        sink.write(pa.table({"id": [1], "text": ["a"]}))
    assert database.run("select * from results") == [(1, "a")]


def test_missing_rights_on_mariadb(make: Any) -> None:
    database = mariadb()
    database.run("create table results (id bigint primary key, text text)")
    database.run(f"create user {database.name}@'127.0.0.1' identified by '{PASSWORD}'")
    database.run(f"grant select on {database.name}.* to {database.name}@'127.0.0.1'")
    error = told(make, database.url.replace("jet:", f"{database.name}:"))
    assert "this user may not write the table 'results': INSERT command denied" in str(error)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_wrong_credentials_fail(make: Any, kind: str) -> None:
    database = postgres() if kind == "postgresql" else mariadb()
    for wrong in (
        database.url.replace(PASSWORD, "another-word"),
        database.url.replace(database.name, "no_such_db"),
    ):
        with pytest.raises(JetError) as caught:
            make(wrong).start()
        assert caught.value.reaction is Reaction.FAIL, caught.value
        assert "refuses access" in str(caught.value) and "another-word" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb"])
def test_an_unreachable_server_is_tried_again(make: Any, scheme: str) -> None:
    error = told(make, f"{scheme}://jet:{PASSWORD}@127.0.0.1:{free_port()}/db")
    assert isinstance(error, SinkUnavailableError) and "cannot be written now" in str(error)


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("postgresql", "drop column text", 'column "text"'),
        ("postgresql", "alter column id type int", "out of range"),
        ("postgresql", "alter column text set not null", "null value"),
        ("postgresql", "", "does not exist"),
        ("mariadb", "drop column text", "Unknown column 'text'"),
        ("mariadb", "modify column id int", "Out of range"),
        ("mariadb", "modify column text varchar(9) not null", "cannot be null"),
        ("mariadb", "", "doesn't exist"),
    ],
)
def test_a_table_that_changes_while_it_runs_ends_the_job_and_loses_nothing(
    make: Any, kind: str, change: str, says: str
) -> None:
    database = SERVERS[kind]()
    create = "create table results (id bigint, text text)"
    database.run(create)
    sink = make(database.url)
    sink.start()
    sink.write(pa.table({"id": [1], "text": ["a"]}, ROWS))
    database.run(f"alter table results {change}" if change else "drop table results")
    rows = pa.table({"id": [2, 2**40], "text": ["b", None]}, ROWS)
    with pytest.raises(SinkMismatchError) as caught:
        sink.write(rows)
    assert caught.value.reaction is Reaction.FAIL
    assert says in str(caught.value) and "Nothing of the epoch is written" in str(caught.value)
    if change:
        assert database.run("select id from results") == [(1,)], "nothing half-written"
    database.run("drop table if exists results")
    database.run(create)
    sink.epoch -= 1
    sink.write(rows)
    assert database.run("select id from results order by id") == [(2,), (2**40,)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "merge"}, "mode: 'merge' is unknown"),
        ({"mode": "upsert"}, "needs a key"),
        ({"key": "id"}, "needs no key"),
        ({"order_by": "id"}, "order_by"),
        ({"transactions": "kept"}, "transactions: 'kept' is unknown"),
        ({"transactions": "held", "mode": "upsert", "key": "id"}, "stay locked"),
        ({"transactions": "held", "create_table": True}, "create_table"),
        ({"transactions": "held", "writers": 0}, "writers"),
        ({"table": "a.b.c"}, "is not a valid table name"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sinks.sql("postgresql://host/db", **{"table": "results", **options})


def test_a_url_that_is_none_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        sinks.sql(f"me:{PASSWORD}@host", table="results")
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://me:half@word@h/db", "mysql://me@h:1/?password=a@word"]
)
def test_a_password_that_is_not_quoted_is_not_taken_for_the_host(url: str) -> None:
    # Failed before: "failed to resolve host 'word@h'".
    with pytest.raises(ConfigurationError, match="an @ is %40") as caught:
        SqlPlace(as_secret(url), "results").parsed()
    assert not re.search(r"\bword", str(caught.value))


SECRET = Secret("JET_TEST_NO_SUCH_DATABASE")
CONNECTORS: dict[str, Any] = {
    "sql": lambda url: sinks.sql(url, table="t"),
    "sql_held": lambda url: sinks.sql(url, table="t", transactions="held"),
    "sql_rows": lambda url: sources.sql(url, table="t", column="id"),
    "sql_table": lambda url: tables.sql(url, table="t"),
    "postgres_changes": lambda url: sources.postgres_changes(url, slot="s", publication="p"),
}


@pytest.mark.parametrize("kind", CONNECTORS)
def test_no_password_in_what_is_shown_or_sent_to_tasks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET.env, f"postgresql://me:{PASSWORD}@host/db")
    made = CONNECTORS[kind](SECRET)
    shown = f"{made!r} {made.describe()} {getattr(made, 'destination', dict)()}"
    assert PASSWORD not in shown and PASSWORD.encode() not in pickle.dumps(made)
    for written in (
        f"postgresql://me:{PASSWORD}@host/db",
        f"postgresql://me@host/db?sslmode=require&password={PASSWORD}",
    ):
        with pytest.raises(ConfigurationError, match="contains its password") as told:
            CONNECTORS[kind](written)
        assert PASSWORD not in str(told.value) and "me@host/db" in str(told.value)
