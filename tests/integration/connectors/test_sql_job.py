"""A job into tables of PostgreSQL: killed, restarted, its rows compared as multisets."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_jet import Jet, JobConfig
from dagster_jet.execution.events import ExecutionRestarting, SnapshotFailed
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.record import JobStatus
from tests.integration import child
from tests.integration.connectors import sql_child
from tests.integration.connectors.sql_job import SqliteDatabase, SqlWorld, new_tables
from tests.integration.world import World, wait_until
from tests.long import long
from tests.servers import launch, own_folder, stop
from tests.servers import mariadb as maria_server
from tests.servers import postgres as server
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres
from tests.servers.proxy import Proxy


@pytest.fixture
def world(world: World) -> Iterator[SqlWorld]:
    found = SqlWorld(world.folder, world.fail_points, world.spark)
    found.fill(files=6)
    found.use(new_tables(postgres()))
    yield found
    del os.environ[sql_child.URL], found.spark.sparkContext.environment[sql_child.URL]


@long  # held transactions are killed below, a mirror that rolls forward in test_debezium.py
@pytest.mark.parametrize(
    "rules",
    [
        "staging.finished:2=kill",
        "record.snapshot.after:3=kill",
        "epoch.acked:3=kill",
        "sql.commit.fenced:3=kill",
        "sql.commit.rows:4=kill",
        "sql.commit.after:5=kill",
        "sql.commit.before:1=kill",
        "sql.commit.rows:1=kill",
        "record.committed.before:2=kill",
    ],
)
def test_killed_once(world: SqlWorld, rules: str) -> None:
    world.run_child(rules)
    world.assert_nothing_doubled()
    entries = world.assert_ledger_is_true()
    if rules.startswith("record.snapshot.after"):
        assert min(e.epoch_id or 0 for e in entries) < entries[0].decided_epoch_id
    world.run()
    world.assert_exactly_once()
    decided = entries[0].decided_epoch_id
    assert all((e.epoch_id or 0) >= decided for e in world.assert_ledger_is_true())


@pytest.mark.parametrize(
    "rules",
    [
        "record.snapshot.after:3=kill",  # decided, and prepared
        pytest.param("epoch.acked:3=kill", marks=long),  # prepared, and undecided
        pytest.param("sql.held.commit.after:2=kill", marks=long),
    ],
)
def test_held_transactions_survive_their_driver(world: SqlWorld, rules: str) -> None:
    world.transactions = "held"
    world.run_child(rules, transactions="held")
    world.assert_nothing_doubled()
    world.run()
    world.assert_exactly_once()
    left = "select gid from pg_prepared_xacts where database = current_database()"
    assert world.database.run(left) == []


@long  # with PostgreSQL it is not
@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_killed_once_between_files_and_another_database(
    world: SqlWorld, kind: str, tmp_path: Path
) -> None:
    database = mariadb() if kind == "mariadb" else SqliteDatabase(tmp_path / "results.db")
    world.use(new_tables(database))
    world.run_child("sql.commit.rows:3=kill")
    world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()


@long
def test_a_mariadb_that_is_killed_in_the_middle_is_waited_for(world: SqlWorld) -> None:
    folder = own_folder("mariadb")
    running = launch("mariadb", folder, maria_server.prepared(folder))
    try:
        world.use(new_tables(maria_server.new_database(running)))
        with world.jet() as jet:
            job = jet.submit(
                sql_child.sql_pipeline(world.folder), JobConfig(**child.CONFIG), on_event=world.see
            )
            wait_until(lambda: world.rows().total() > 0, "the job runs")
            stop(running, signal.SIGKILL)
            world.fill(files=3, first=6)
            wait_until(lambda: bool(world.events_of(SnapshotFailed)), "the outage is met")
            running = launch("mariadb", folder, maria_server.prepared(folder))
            assert job.complete(60).status is JobStatus.COMPLETED
        assert world.events_of(ExecutionRestarting) == []
        world.assert_exactly_once()
    finally:
        stop(running)


@long
def test_a_connection_that_is_cut_costs_no_restart(world: SqlWorld) -> None:
    with Proxy(world.database.port) as proxy:
        world.use(world.database, proxy.port)
        with world.jet() as jet:
            job = jet.submit(
                sql_child.sql_pipeline(world.folder), JobConfig(**child.CONFIG), on_event=world.see
            )
            wait_until(lambda: world.rows().total() > 0, "the job runs")
            proxy.cut_after(500)  # in the middle of some commit
            world.fill(files=3, first=6)
            wait_until(lambda: proxy.is_cut, "the connection is cut")
            proxy.restore()
            assert job.complete(60).status is JobStatus.COMPLETED
    assert world.events_of(ExecutionRestarting) == []
    world.assert_exactly_once()


@long  # commits meet dead databases in test_sql_held.py; test_crashes.py has jobs that live on
def test_a_database_that_is_away_at_the_start_and_dies_in_the_middle(world: SqlWorld) -> None:
    """Waited for in place, both times: the job is the same execution all along."""
    folder = own_folder("postgres")
    running = launch("postgres", folder, server.prepared(folder))
    try:
        world.use(new_tables(server.new_database(running)))
        stop(running)
        with world.jet() as jet:
            job = jet.submit(
                sql_child.sql_pipeline(world.folder), JobConfig(**child.CONFIG), on_event=world.see
            )
            wait_until(lambda: "cannot be written now" in error_kind(jet), "the lease says it")
            assert job.status is JobStatus.STARTING
            running = launch("postgres", folder, server.prepared(folder))
            wait_until(lambda: world.rows().total() > 0, "the job runs")
            stop(running, signal.SIGKILL)
            world.fill(files=3, first=6)
            wait_until(lambda: bool(world.events_of(SnapshotFailed)), "the outage is met")
            running = launch("postgres", folder, server.prepared(folder))
            assert job.complete(60).status is JobStatus.COMPLETED
        assert world.events_of(ExecutionRestarting) == []
        world.assert_exactly_once()
    finally:
        stop(running)


def error_kind(jet: Jet) -> str:
    """Returns the error in the job's lease: the one that the job waits for."""
    record = read_record(jet.store, sql_child.JOB)
    lease = None if record is None else record.lease
    return "" if lease is None or lease.activity is None else lease.activity.error
