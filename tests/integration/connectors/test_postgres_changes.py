"""The changes of a table, from a logical slot of a real PostgreSQL."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import sources
from dagster_jet.connectors.postgres.change_rows import lsn_of, lsn_text
from dagster_jet.connectors.postgres.changes_reader import ChangesReader
from dagster_jet.contract import Backlog
from dagster_jet.errors import (
    BadRowError,
    ConfigurationError,
    InputLostError,
    JetError,
    Reaction,
    SourceUnavailableError,
)
from dagster_jet.system import failpoint
from dagster_jet.testing.check_source import check_source
from dagster_jet.testing.typed_rows import Typed
from tests.integration.connectors.changes_reading import (
    OWN,
    changes,
    database,
    drop_slots,
    insert,
    plain,
    read,
)
from tests.long import long
from tests.servers import launch, own_folder, stop, wait_until
from tests.servers import postgres as server
from tests.servers.postgres import PASSWORD, PostgresDatabase, new_database, postgres
from tests.servers.proxy import Proxy

__all__ = ["database"]

ROOT = Path(__file__).parents[3]
TYPES = {
    "boolean": "boolean",
    "short": "smallint",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "decimal(38,9)": "numeric(38, 9)",
    "string": "text",
    "date": "date",
    "timestamp": "timestamptz",
    "binary": "bytea",
}


def test_the_contract_is_kept(database: PostgresDatabase, spark: Any) -> None:
    def row_of(row: Any) -> Any:
        assert row["op"] == "insert"
        return row["id"], row["text"]

    with Proxy(database.port) as proxy:
        check_source(
            lambda: changes(database, proxy.port).at_start("j", "in", on_one_host=True),
            lambda rows: insert(database, "t", rows),
            spark,
            row_of=row_of,
            outages={"a connection that is cut": proxy.cut},
        )


def test_what_the_page_says_to_do_first(database: PostgresDatabase) -> None:
    """The server takes its statements, and then a job finds the table by its publication."""
    page = (ROOT / "docs" / "connectors" / "postgres-changes.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    (publication,) = re.findall(r'publication="(\w+)"', page)
    database.run("create table orders (id bigint primary key)")
    for statement in re.sub(r"--.*", "", block).split(";"):
        if statement.strip():
            database.run(statement)
    reader = changes(database, publication=publication).open("j", "in", None)
    insert(database, "orders", [{"id": 1}])
    assert [(row["op"], row["id"]) for row in read(reader)] == [("insert", 1)]
    reader.close()


def test_values_of_every_type() -> None:
    database = postgres()
    columns = ", ".join(f"v{n} {kind}" for n, kind in enumerate(TYPES.values()))
    database.run(f"create table typed (id bigint primary key, {columns})")
    database.run("create publication p for table typed")
    rows = Typed(changes, lambda sent: None, tuple(TYPES)).rows()
    reader = changes(database).open("j", "in", None)
    insert(database, "typed", rows)
    found = [{name: row[name] for name in row if name not in ("op", *OWN)} for row in read(reader)]
    reader.close()
    drop_slots(database)
    assert sorted(map(shown, found)) == sorted(map(shown, rows))


def shown(row: dict[str, Any]) -> str:
    """Comparable: NaN is not equal to itself, and zones have several names."""
    return repr([v.isoformat() if isinstance(v, datetime) else v for v in row.values()])


def test_the_end_of_the_input_is_where_the_log_ended_then(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll asks for so many changes; others go on writing."""
    monkeypatch.setattr("dagster_jet.connectors.postgres.changes_reader.MESSAGES_AT_ONCE", 5)
    reader = changes(database).open("j", "in", None)
    for number in range(9):
        insert(database, "t", [{"id": number}])
    reader.mark_backlog()
    found = [row["id"] for row in read(reader)]
    assert reader.backlog() is Backlog.WAITING and len(found) < 9
    later = 100
    while reader.backlog() is Backlog.WAITING:
        insert(database, "t", [{"id": later}])
        later += 1
        found += [row["id"] for row in read(reader)]
    assert found[:9] == list(range(9)) and later < 110
    reader.close()


def test_inserts_updates_and_deletions_in_order(database: PostgresDatabase) -> None:
    reader = changes(database).open("j", "in", None)
    database.run("insert into t values (1, 'a'), (2, null)")
    database.run("update t set text = 'b' where id = 1")
    database.run("update t set id = 3 where id = 2")
    database.run("delete from t where id = 3")
    database.run("truncate t")
    assert plain(read(reader)) == [
        ("insert", 1, "a"),
        ("insert", 2, None),
        ("update", 1, "b"),
        ("update", 3, None),
        ("delete", 3, None),
        ("truncate", None, None),
    ]
    reader.close()


def test_a_slot_is_advanced_by_the_acknowledgement_alone(database: PostgresDatabase) -> None:
    reader = changes(database).open("j", "in", None)
    confirmed = "select confirmed_flush_lsn::text from pg_replication_slots where database = %s"
    before = database.run(confirmed, database.name)
    database.run("insert into t values (1, 'a')")
    read(reader)
    messages = reader.unacknowledged()
    assert database.run(confirmed, database.name) == before
    reader.acknowledge(messages)
    [(after,)] = database.run(confirmed, database.name)
    assert lsn_of(after) >= lsn_of(next(iter(messages))) > lsn_of(before[0][0])
    assert reader.unacknowledged() == {} and read(reader) == []
    reader.close()


@pytest.mark.parametrize(
    "step", [pytest.param("postgres.advance.before", marks=long), "postgres.advance.after"]
)
def test_a_crash_around_the_advance_is_made_up_for(database: PostgresDatabase, step: str) -> None:
    reader = changes(database).open("j", "in", None)
    database.run("insert into t values (1, 'a')")
    read(reader)
    position, messages = reader.position(), reader.unacknowledged()
    failpoint.configure(f"{step}:1=raise")
    try:
        with pytest.raises(Exception, match=step):
            reader.acknowledge(messages)
    finally:
        failpoint.configure("")
    reader.close()
    successor = changes(database).open("j", "in", None)
    successor.restore(position, None)
    successor.restore_unacknowledged(messages)
    successor.acknowledge(messages)
    database.run("insert into t values (2, 'b')")
    assert [row["id"] for row in read(successor)] == [2]
    successor.close()


def test_a_transaction_that_a_snapshot_divides_is_read_once(database: PostgresDatabase) -> None:
    reader = changes(database).open("j", "in", None)
    insert(database, "t", [{"id": n, "text": "x"} for n in range(10)])
    reader.accept(reader.poll())
    first = reader.plan(4)
    assert first is not None and [row.values["id"] for row in first] == ["0", "1", "2", "3"]
    assert reader.unacknowledged() == {}, "the slot keeps a transaction until it is read whole"
    position = reader.position()
    reader.close()
    successor = changes(database).open("j", "in", None)
    successor.restore(position, None)
    assert [row["id"] for row in read(successor, 3)] == [4, 5, 6, 7, 8, 9]
    assert len(successor.unacknowledged()) == 1
    successor.close()


def test_more_than_a_poll_takes_comes_with_the_next(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_jet.connectors.postgres.changes_reader.MESSAGES_AT_ONCE", 5)
    reader = changes(database).open("j", "in", None)
    for n in range(6):
        insert(database, "t", [{"id": 10 * n + m, "text": "x"} for m in range(3)])
    ids = [[row["id"] for row in read(reader)] for _ in range(7)]
    assert Counter(id for some in ids for id in some) == Counter(
        10 * n + m for n in range(6) for m in range(3)
    )
    assert len(ids[0]) < 18, "a poll is bounded"
    reader.close()


@contextmanager
def own_server() -> Iterator[list[Any]]:
    home = own_folder("postgres")
    running = [launch("postgres", home, server.prepared(home)), home]
    try:
        yield running
    finally:
        stop(running[0])


def is_away(reader: ChangesReader) -> bool:
    """Waits until the server is gone: the process behind our connection outlives it by a moment."""
    try:
        reader.poll()
    except SourceUnavailableError:
        return True
    return False


def test_the_server_starts_again_in_the_middle() -> None:
    with own_server() as running:
        database = new_database(running[0])
        database.run("create table t (id bigint primary key, text text)")
        database.run("create publication p for table t")
        reader = changes(database).open("j", "in", None)
        database.run("insert into t values (1, 'a')")
        assert [row["id"] for row in read(reader)] == [1]
        stop(running[0], signal.SIGKILL)
        wait_until(lambda: is_away(reader), within=30)
        running[0] = launch("postgres", running[1], server.prepared(running[1]))
        database.run("insert into t values (2, 'b')")
        assert [row["id"] for row in read(reader)] == [2]
        reader.acknowledge(reader.unacknowledged())
        reader.close()


# --- what is gone, or does not fit ----------------------------------------------------------------


def test_changes_that_the_slot_has_forgotten_end_the_job(database: PostgresDatabase) -> None:
    reader = changes(database).open("j", "in", None)
    database.run("insert into t values (1, 'a')")
    read(reader)
    position = reader.position()
    reader.close()
    database.run("insert into t values (2, 'b')")
    database.run(f"select pg_replication_slot_advance('s_{database.name}', pg_current_wal_lsn())")
    successor = changes(database).open("j", "in", None)
    successor.restore(position, None)
    with pytest.raises(InputLostError, match="another client has advanced"):
        successor.poll()
    drop_slots(database)
    with pytest.raises(InputLostError, match="does not exist any more"):
        successor.poll()
    successor.close()


def test_a_value_that_spark_does_not_have(database: PostgresDatabase) -> None:
    database.run("alter table t add d date")
    reader = changes(database).open("j", "in", None)
    database.run("insert into t values (1, 'a', 'infinity')")
    with pytest.raises(BadRowError, match=r"d of public\.t has the value 'infinity'"):
        read(reader)
    reader.close()


def failure(source: Any) -> JetError:
    with pytest.raises(JetError) as caught:
        source.at_start("j", "in", on_one_host=True).open("j", "in", None)
    assert PASSWORD not in str(caught.value)
    return caught.value


def test_what_a_start_finds(database: PostgresDatabase) -> None:
    assert "has no table, or does not exist" in str(failure(changes(database, publication="no")))
    database.run("create table u (id bigint primary key, op text)")
    database.run("create publication two for table t, u")
    assert "has 2 tables: public.t, public.u" in str(failure(changes(database, publication="two")))
    database.run("create publication op for table u")
    assert "whose names are taken" in str(failure(changes(database, publication="op")))
    database.run("select pg_create_logical_replication_slot('other', 'test_decoding')")
    assert "is one of test_decoding" in str(failure(changes(database, slot="other")))


def test_credentials_rights_and_servers_that_are_away(database: PostgresDatabase) -> None:
    database.run(f"create role {database.name} login password '{PASSWORD}'")
    poor = PostgresDatabase(database.port, database.name, database.name)
    error = failure(changes(poor))
    assert "must be superuser or replication role" in str(error)
    assert error.reaction is Reaction.FAIL
    error = failure(changes(PostgresDatabase(database.port, database.name, password="wrong")))
    assert error.reaction is Reaction.FAIL and "password authentication failed" in str(error)
    assert failure(changes(database, 1)).reaction is Reaction.RETRY


def test_a_server_without_logical_decoding_is_named() -> None:
    folder = own_folder("postgres")
    running = launch("postgres", folder, server.prepared(folder, wal_level="replica"))
    try:
        database = new_database(running)
        database.run("create table t (id bigint primary key, text text)")
        database.run("create publication p for table t")
        assert "wal_level is replica" in str(failure(changes(database)))
    finally:
        stop(running)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("mysql://host/db", {"slot": "s", "publication": "p"}),
        ("postgresql://host/db", {"slot": "", "publication": "p"}),
        ("postgresql://host/db", {"slot": "Not-one", "publication": "p"}),
        ("postgresql://host/db", {"slot": "s", "publication": ""}),
    ],
)
def test_arguments_that_are_none(url: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        sources.postgres_changes(url, **options)


def test_positions_are_written_as_the_server_writes_them() -> None:
    assert lsn_text(lsn_of("16/B374D848")) == "16/B374D848" and lsn_of("0/0") == 0
    assert lsn_of("1/0") == 2**32
