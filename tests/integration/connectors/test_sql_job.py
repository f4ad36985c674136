"""A job into tables of PostgreSQL: killed, restarted, its rows compared as multisets."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JobConfig, JobResult
from dagster_jet.execution.events import ExecutionRestarting, SnapshotFailed
from dagster_jet.snapshot.record import JobStatus
from tests.integration import child
from tests.integration.connectors import sql_child
from tests.integration.connectors.kafka_world import KafkaWorld
from tests.integration.oracle import input_rows, windowed
from tests.integration.world import World, wait_until
from tests.long import long
from tests.servers import launch, own_folder, stop
from tests.servers import mariadb as maria_server
from tests.servers import postgres as server
from tests.servers.mariadb import MariaDatabase, mariadb
from tests.servers.postgres import PASSWORD, postgres
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.usefixtures("interpreted")


@dataclass(frozen=True)
class SqliteDatabase:
    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as database, database:
            return database.execute(statement).fetchall()


class SqlWorld(World):
    driver = staticmethod(sql_child.main)
    database: Any
    transactions = "roll-forward"

    def use(self, database: Any, port: int | None = None) -> None:
        self.database = database
        url = database.through(port) if port else database.url
        (self.folder / "url").write_text(url)
        os.environ[sql_child.URL] = self.spark.sparkContext.environment[sql_child.URL] = url

    def send_to_kafka(self) -> None:
        """What the files have; the job reads it from the topic then."""
        kafka = KafkaWorld()
        topic = kafka.topic()
        kafka.send(topic, input_rows(self.folder / "in" / "left"), partition=0)
        place = {"servers": kafka.servers, "in": topic}
        (self.folder / "kafka.json").write_text(json.dumps(place))

    def run(self, until: str = "completed", **config: Any) -> JobResult:
        with self.jet() as jet:
            return jet.run(
                sql_child.sql_pipeline(self.folder, self.transactions),
                JobConfig(**{**child.CONFIG, **config}),
                until=until,
                on_event=self.see,
            )

    def rows(self) -> Counter[tuple[Any, ...]]:
        name = "`rows`" if isinstance(self.database, MariaDatabase) else "rows"
        return Counter(self.database.run(f"select k, ts, v from {name}"))

    def counts(self) -> Counter[tuple[Any, ...]]:
        found = self.database.run("select k, window_start, window_end, n, total from counts")
        return Counter((k, _ms(start), _ms(end), n, total) for k, start, end, n, total in found)

    def assert_exactly_once(self) -> None:
        rows = list(input_rows(self.folder / "in" / "left"))
        assert self.rows() == Counter((r["k"], r["ts"], r["v"]) for r in rows)
        assert self.counts() == Counter(windowed(rows, child.WINDOW_MS))

    def assert_nothing_doubled(self) -> None:
        rows = input_rows(self.folder / "in" / "left")
        assert not self.rows() - Counter((r["k"], r["ts"], r["v"]) for r in rows)


@pytest.fixture
def world(world: World) -> Iterator[SqlWorld]:
    found = SqlWorld(world.folder, world.fail_points, world.spark)
    found.fill(files=6)
    found.use(new_tables(postgres()))
    yield found
    del os.environ[sql_child.URL], found.spark.sparkContext.environment[sql_child.URL]


def _ms(time: Any) -> int:
    """Of a time as a plain client has it: without a zone it is UTC; SQLite's is text."""
    at = datetime.fromisoformat(time) if isinstance(time, str) else time
    at = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at
    return round(at.timestamp() * 1000)


def new_tables(database: Any) -> Any:
    on_mariadb = isinstance(database, MariaDatabase)
    name, time = ("`rows`", "datetime(6)") if on_mariadb else ("rows", "timestamptz")
    database.run(f"create table {name} (k varchar(50), ts bigint, v bigint)")
    database.run(
        f"create table counts (k varchar(50), window_start {time}, window_end {time}, n bigint, "
        "total bigint, primary key (k, window_start))"
    )
    return database


KILLS = [
    "epoch.acked:3=kill",
    "record.snapshot.after:3=kill",
    "sql.commit.fenced:3=kill",
    "sql.commit.rows:4=kill",
    "sql.commit.after:5=kill",
    pytest.param("sql.commit.before:1=kill", marks=long),
    pytest.param("sql.commit.rows:1=kill", marks=long),
    pytest.param("staging.finished:2=kill", marks=long),
    pytest.param("record.committed.before:2=kill", marks=long),
]


def test_killed_again_and_again_between_kafka_and_a_table(world: SqlWorld) -> None:
    """Five deaths of one job, each in another moment of a commit."""
    world.send_to_kafka()
    config = {**child.CONFIG, "max_items_per_epoch": 12}
    for rules in KILLS[:5]:
        second = str(rules).replace(":3", ":2").replace(":4", ":2").replace(":5", ":2")
        world.run_child(second, config=config)
        world.assert_nothing_doubled()
    assert world.run(max_items_per_epoch=12).status is JobStatus.COMPLETED
    world.assert_exactly_once()


@pytest.mark.parametrize("rules", [pytest.param(str(r), marks=long) for r in KILLS[:5]] + KILLS[5:])
def test_killed_once(world: SqlWorld, rules: str) -> None:
    world.run_child(rules)
    world.assert_nothing_doubled()
    world.run()
    world.assert_exactly_once()


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
            wait_until(lambda: "cannot be written now" in trouble(jet), "the lease says it")
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


def trouble(jet: Jet) -> str:
    """What the owner of the job says that it is waiting for."""
    record = jet.record(sql_child.JOB)
    lease = None if record is None else record.lease
    return "" if lease is None or lease.activity is None else lease.activity.trouble


def test_no_password_is_shown(world: SqlWorld) -> None:
    world.run()
    with world.jet() as jet:
        plan = str(jet.plan(sql_child.sql_pipeline(world.folder)))
    manifests = b"".join(p.read_bytes() for p in world.folder.rglob("store/**/*") if p.is_file())
    assert PASSWORD not in plan + str(world.events)
    assert PASSWORD.encode() not in manifests
