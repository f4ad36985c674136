"""A job from files into tables of PostgreSQL: killed, restarted, rows compared as multisets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dagster_jet import JobConfig, JobResult
from dagster_jet.execution.events import ExecutionRestarting
from dagster_jet.snapshot.record import JobStatus
from tests.integration import child
from tests.integration.connectors import sql_child
from tests.integration.oracle import input_rows, windowed
from tests.integration.world import World, wait_until
from tests.long import long
from tests.servers.postgres import PASSWORD, PostgresDatabase, postgres
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.usefixtures("interpreted")


class SqlWorld(World):
    driver = staticmethod(sql_child.main)
    database: PostgresDatabase
    transactions = "roll-forward"

    def use(self, database: PostgresDatabase, port: int | None = None) -> None:
        self.database = database
        url = database.through(port or database.port)
        (self.folder / "url").write_text(url)
        os.environ[sql_child.URL] = self.spark.sparkContext.environment[sql_child.URL] = url

    def run(self, until: str = "completed", **config: Any) -> JobResult:
        with self.jet() as jet:
            return jet.run(
                sql_child.sql_pipeline(self.folder, self.transactions),
                JobConfig(**{**child.CONFIG, **config}),
                until=until,
                on_event=self.see,
            )

    def rows(self) -> Counter[tuple[Any, ...]]:
        return Counter(self.database.run("select k, ts, v from rows"))

    def counts(self) -> Counter[tuple[Any, ...]]:
        return Counter(
            self.database.run(
                "select k, (extract(epoch from window_start) * 1000)::bigint, "
                "(extract(epoch from window_end) * 1000)::bigint, n, total from counts"
            )
        )

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
    found.use(new_tables())
    yield found
    del os.environ[sql_child.URL], found.spark.sparkContext.environment[sql_child.URL]


def new_tables() -> PostgresDatabase:
    database = postgres()
    database.run("create table rows (k text, ts bigint, v bigint)")
    database.run(
        "create table counts (k text, window_start timestamptz, window_end timestamptz, n bigint, "
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


def test_killed_again_and_again(world: SqlWorld) -> None:
    """Five deaths of one job, each in another moment of a commit."""
    for rules in KILLS[:5]:
        world.run_child(str(rules).replace(":3", ":2").replace(":4", ":2").replace(":5", ":2"))
        world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
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


def test_no_password_is_shown(world: SqlWorld) -> None:
    world.run()
    with world.jet() as jet:
        plan = str(jet.plan(sql_child.sql_pipeline(world.folder)))
    manifests = b"".join(p.read_bytes() for p in world.folder.rglob("store/**/*") if p.is_file())
    assert PASSWORD not in plan + str(world.events)
    assert PASSWORD.encode() not in manifests
