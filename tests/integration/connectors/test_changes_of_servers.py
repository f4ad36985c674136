"""Another server, an older one, a slot that others use, a log that has nothing for us: no change is
passed over in silence, and no log is kept for nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_jet.connectors.postgres import changes_reader as reader_module
from dagster_jet.connectors.postgres.changes_reader import ChangesReader
from dagster_jet.contract import Backlog
from dagster_jet.errors import InputLostError, Reaction, SourceError, SourceUnavailableError
from tests.integration.connectors.changes_reading import changes, database, drop_slots, read
from tests.servers import launch, own_folder, stop, wait_until
from tests.servers import postgres as server
from tests.servers.postgres import PostgresDatabase, new_database

__all__ = ["database"]


class OwnServer:
    """Server that a test may stop, copy and put back."""

    def __init__(self, **settings: str) -> None:
        self.home = own_folder("postgres")
        self.settings = settings
        self.start()
        self.database = new_database(self.running)
        self.database.run("create table t (id bigint primary key, text text)")
        self.database.run("create publication p for table t")

    def start(self) -> None:
        self.running = launch("postgres", self.home, server.prepared(self.home, **self.settings))

    def stop(self) -> None:
        stop(self.running, signal.SIGKILL)

    def copied(self) -> Path:
        """Copy of the data on disk, taken while the server is down."""
        copy = self.home / "copy"
        self.stop()
        _copy(self.home / "data", copy)
        self.start()
        return copy

    def put_back(self, copy: Path, *, as_new_timeline: bool = False) -> None:
        self.stop()
        data = self.home / "data"
        shutil.rmtree(data)
        _copy(copy, data)
        if as_new_timeline:
            (data / "recovery.signal").touch(0o666)
            (data / "recovery.signal").chmod(0o666)  # the server runs as another user
            self.settings["restore_command"] = "false"
        self.start()


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


@contextmanager
def own_server(**settings: str) -> Iterator[OwnServer]:
    made = OwnServer(**settings)
    try:
        yield made
    finally:
        made.stop()


def opened(database: PostgresDatabase, position: dict[str, Any] | None = None) -> ChangesReader:
    reader: ChangesReader = changes(database).open("j", "in", None)
    if position is not None:
        reader.restore(position, None)
    return reader


def with_rows(reader: ChangesReader, database: PostgresDatabase, *ids: int) -> dict[str, Any]:
    """Reads them, has them acknowledged, and returns the position."""
    for id in ids:
        database.run("insert into t values (%s, 'a')", id)
    assert [row["id"] for row in read(reader)] == list(ids)
    reader.acknowledge(reader.unacknowledged())
    return reader.position()


def test_an_older_copy_of_the_server_is_noticed(database: PostgresDatabase) -> None:
    """The log of the copy ends before the position that was read. Once the copy goes on, it has
    other transactions there."""
    with own_server() as own:
        reader = opened(own.database)
        with_rows(reader, own.database, 1)
        copy = own.copied()
        own.database.run("insert into t select i, 'b' from generate_series(2, 1000) i")
        with pytest.raises(SourceUnavailableError):
            reader.poll()  # the server was away
        assert len(read(reader)) == 999
        position = reader.position()
        reader.close()
        own.put_back(copy)
        reader = opened(own.database, position)
        with pytest.raises(InputLostError, match="was restored"):
            reader.poll()
        with pytest.raises(InputLostError, match="was restored"):
            reader.acknowledge({position["whole"]: None})
        reader.close()
        own.database.run("insert into t select i, 'other' from generate_series(2, 3000) i")
        reader = opened(own.database, position)
        with pytest.raises(InputLostError, match=r"no transaction ends at .* and has continued"):
            reader.poll()
        reader.close()


def test_a_copy_on_a_new_timeline_goes_on_where_it_has_all_that_was_read() -> None:
    with own_server() as own:
        reader = opened(own.database)
        before = with_rows(reader, own.database, 1)
        copy = own.copied()
        after = with_rows(opened(own.database, before), own.database, 2)
        reader.close()
        own.put_back(copy, as_new_timeline=True)
        recovering = "select pg_is_in_recovery()"
        wait_until(lambda: own.database.run(recovering) == [(False,)], within=30)
        reader = opened(own.database, before)
        assert reader.server.timeline == before["timeline"] + 1
        own.database.run("insert into t values (3, 'c')")
        assert [row["id"] for row in read(reader)] == [3]
        assert reader.position()["timeline"] == before["timeline"] + 1
        reader.close()
        reader = opened(own.database, after)
        with pytest.raises(InputLostError, match="was restored, or a standby has taken over"):
            reader.poll()
        reader.close()


def test_another_server_behind_the_name_is_noticed(database: PostgresDatabase) -> None:
    with own_server() as own:
        reader = opened(database)
        position = with_rows(reader, database, 1)
        other = opened(own.database, {**position, "whole": "0/1", "lsn": "0/1"})
        with pytest.raises(InputLostError, match="does not exist any more"):
            other.poll()
        slots = "select count(*) from pg_replication_slots"
        assert own.database.run(slots) == [(0,)], "the slot that the start had made is gone"
        other.close()
        opened(own.database).close()
        other = opened(own.database, {**position, "whole": "0/1", "lsn": "0/1"})
        with pytest.raises(InputLostError, match="this is another server"):
            other.acknowledge({"0/1": None})
        other.close()
        # In the middle of an execution it compares, with the next one's start.
        reader.place, reader._connection = other.place, None
        with pytest.raises(SourceError, match="another server answers") as caught:
            reader.poll()
        assert caught.value.reaction is Reaction.RESTART
        reader.close()


def test_a_slot_whose_log_was_removed_is_lost() -> None:
    with own_server(max_slot_wal_keep_size="1MB", max_wal_size="32MB") as own:
        reader = opened(own.database)
        for _ in range(4):
            own.database.run("select pg_switch_wal(), pg_logical_emit_message(false, 'x', 'y')")
        own.database.run("checkpoint")
        with pytest.raises(InputLostError, match="max_slot_wal_keep_size"):
            reader.poll()
        reader.close()
        with pytest.raises(InputLostError, match="max_slot_wal_keep_size"):
            opened(own.database).poll()


def test_two_jobs_on_one_slot_lose_nothing_in_silence(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job advances the slot between our look at it and the peek."""
    reader = opened(database)
    with_rows(reader, database, 1)
    other = opened(database)
    database.run("insert into t values (2, 'b')")
    look = reader._slot

    def looks(connection: Any) -> tuple[int, str]:
        found = look(connection)
        monkeypatch.undo()
        read(other)
        other.acknowledge(other.unacknowledged())
        return found

    monkeypatch.setattr(reader, "_slot", looks)
    with pytest.raises(InputLostError, match="another client has advanced"):
        reader.poll()
    reader.close()
    other.close()


def test_a_quiet_table_lets_the_server_forget_its_log(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch without rows, whose snapshot moves the slot; not with each poll."""
    monkeypatch.setattr(reader_module, "ADVANCE_S", 0.0)
    database.run("create table foreign_rows (text text)")
    begins = "select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = %s"
    reader = opened(database)
    for _ in range(3):
        [(before,)] = database.run(begins, reader.slot)
        database.run(
            "insert into foreign_rows select repeat('x', 900) from generate_series(1, 10000)"
        )
        reader.accept(reader.poll())
        assert reader.waiting().items == 1 and reader.waiting().details == {"changes": 0}
        split = reader.plan(100)
        assert split == () and reader._tables(split)[0].num_rows == 0
        assert reader.waiting().items == 0 and reader.plan(100) is None
        position, messages = reader.position(), reader.unacknowledged()
        reader.acknowledge(messages)
        [(after,)] = database.run(begins, reader.slot)
        assert after - before > 9_000_000
        reader.close()
        reader = opened(database, position)
        database.run("insert into t select coalesce(max(id), 0) + 1, 'a' from t")
        assert len(read(reader)) == 1
        reader.acknowledge(reader.unacknowledged())
    reader.close()


def test_a_transaction_that_is_open_meanwhile_is_not_passed_over(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "ADVANCE_BYTES", 1)
    monkeypatch.setattr(reader_module, "ADVANCE_S", 0.0)
    database.run("create table foreign_rows (text text)")
    reader = opened(database)
    with psycopg.connect(database.url) as open_one:
        open_one.execute("insert into t values (1, 'a')")
        for _ in range(3):
            database.run("insert into foreign_rows values ('x')")
            assert read(reader) == []
            reader.acknowledge(reader.unacknowledged())
    position = reader.position()
    reader.close()
    reader = opened(database, position)
    assert [row["id"] for row in read(reader)] == [1]
    reader.close()


def test_a_run_that_drains_ends_where_only_others_write(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "MESSAGES_AT_ONCE", 5)
    database.run("create table foreign_rows (text text)")
    reader = opened(database)
    database.run("insert into t select i, 'a' from generate_series(1, 12) i")
    database.run("insert into t values (20, 'b')")
    reader.mark_backlog()
    found = []
    for _ in range(10):
        found += [row["id"] for row in read(reader)]
        if reader.backlog() is Backlog.READ:
            break
        database.run("insert into foreign_rows values ('x')")
    assert found == [*range(1, 13), 20]
    assert reader.backlog() is Backlog.READ
    reader.close()
    drop_slots(database)


def test_a_standby_is_waited_for(database: PostgresDatabase) -> None:
    """The standby may be about to take over."""
    with own_server() as own:
        own.settings["hot_standby"] = "on"
        own.stop()
        (own.home / "data" / "standby.signal").touch(0o666)
        own.start()
        with pytest.raises(SourceUnavailableError, match="is a standby"):
            opened(own.database)


def test_a_server_without_a_free_slot_is_waited_for() -> None:
    with own_server(max_replication_slots="1") as own:
        opened(own.database).close()
        other = new_database(own.running)
        other.run("create table t (id bigint primary key, text text)")
        other.run("create publication p for table t")
        with pytest.raises(SourceUnavailableError, match="all replication slots are in use"):
            opened(other)
        drop_slots(own.database)
        opened(other).close()
