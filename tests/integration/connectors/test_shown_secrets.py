"""A password is where it is used, and nowhere else: not where a server refuses it, either."""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dagster_jet import JobConfig, Pipeline, Secret, sinks, sources
from dagster_jet.errors import JetError
from dagster_jet.execution.events import EpochCompleted
from dagster_jet.orchestration.asset_specs import build_jet_asset_specs, build_jet_source_assets
from dagster_jet.snapshot.record import JobStatus
from tests.integration import child
from tests.integration.world import World
from tests.servers.postgres import PostgresDatabase, postgres

USER, WORD, URL = "teller", "open-sesame-4711", "JET_TEST_SHOWN_URL"
"""The password is this word and what a URL has to quote."""
PASSWORD = f"{WORD}/é"


@pytest.fixture
def database() -> Iterator[PostgresDatabase]:
    found = postgres()
    found.run(f"create role {USER} superuser login password 'another'")
    found.run("create table orders (id bigint primary key, text text)")
    found.run("create table upserted as table orders")
    found.run("create unique index on upserted (id)")
    found.run("create table held (op text, id bigint, text text)")
    found.run("create publication p for table orders")
    found.run(f"select pg_create_logical_replication_slot('{found.name}', 'pgoutput')")
    found.run("insert into orders values (1, 'a'), (2, 'b')")
    yield found
    found.run(f"select pg_drop_replication_slot('{found.name}')")
    for statement in ("reassign owned by {} to jet", "drop owned by {}", "drop role {}"):
        found.run(statement.format(USER))


def copies(slot: str) -> Pipeline:
    """Two sources of a database, and two sinks: one writes on the driver, one in tasks."""
    p, url = Pipeline("copies"), Secret(URL)
    p.read_from(sources.sql(url, table="orders", column="id"), name="orders").write_to(
        sinks.sql(url, table="upserted", mode="upsert", key="id"), name="upserted"
    )
    changes = sources.postgres_changes(url, slot=slot, publication="p")
    p.read_from(changes, name="changes").select("op", "id", "text").write_to(
        sinks.sql(url, table="held", transactions="held"), name="held"
    )
    return p


@contextmanager
def event_log(spark: Any, folder: Path) -> Iterator[None]:
    """Writes Spark's event log for the history server: plans, stages, and the texts of failures."""
    folder.mkdir()
    context, jvm = spark.sparkContext, spark._jvm
    java, place = context._jsc.sc(), jvm.java.net.URI(folder.as_uri())
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "shown", none, place, java.conf().set("spark.eventLog.compress", "false")
    )
    log.start()
    java.addSparkListener(log)
    yield
    java.listenerBus().waitUntilEmpty()
    java.removeSparkListener(log)
    log.stop()


def command_lines() -> list[str]:
    """Command lines of all processes of this machine; every user can read them."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().decode(errors="replace"))
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_no_password_is_shown(
    world: World,
    database: PostgresDatabase,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "sqlalchemy")
    caplog.set_level(logging.INFO, "py4j")  # below it is all that goes to the JVM
    executors = world.spark.sparkContext.environment
    as_teller = replace(database, user=USER, password=quote(PASSWORD, safe=""))
    monkeypatch.setenv(URL, as_teller.url)
    monkeypatch.setitem(executors, URL, replace(as_teller, password=f"wrong-{WORD}").url)
    shown: list[str] = []
    pipeline = copies(database.name)

    def see(event: Any) -> None:
        shown.append(repr(event))
        if isinstance(event, EpochCompleted):
            shown.extend(command_lines())

    def run() -> JobStatus:
        config = JobConfig(**{**child.CONFIG, "restart_attempts_max": 0})
        return jet.run(pipeline, config, until="drained", on_event=see).status

    def refusal(run: Callable[[], Any]) -> str:
        with pytest.raises(JetError) as caught:
            run()
        return "".join(traceback.format_exception(caught.value))

    with event_log(world.spark, world.folder / "events"), world.jet() as jet:
        at_start = refusal(run)
        database.run(f"alter role {USER} password '{PASSWORD}'")
        in_tasks = refusal(run)
        executors[URL] = os.environ[URL]
        assert run() is JobStatus.DRAINED
        graph = pipeline.graph
        connectors: list[Any] = [node.source for node in graph.sources]
        connectors += [node.sink.with_store(jet.store) for node in graph.sinks]
        started = [one.at_start("copies", "stage", on_one_host=True) for one in connectors]
        shown += [pickle.dumps(one).decode("latin-1") for one in connectors + started]
        shown += [repr(connectors), repr(started), repr([one.describe() for one in connectors])]
        job = jet.job("copies")
        shown += map(repr, (jet.plan(pipeline), job.explain(), jet.jobs()))
        shown += map(repr, (job.ledger(), job.profile()))
    for specs in (build_jet_asset_specs(pipeline), build_jet_source_assets(pipeline)):
        shown += map(repr, specs)
    copied = [(1, "a"), (2, "b")]
    assert database.run("select * from upserted order by id") == copied
    assert database.run("select * from held order by id") == [("insert", *row) for row in copied]
    assert all(f'authentication failed for user "{USER}"' in text for text in (at_start, in_tasks))

    files = {p: p.read_bytes() for p in world.folder.rglob("*") if p.is_file()}
    spark_log = b"".join(data for path, data in files.items() if "events" in path.parts)
    assert b"SparkListenerSQLExecutionStart" in spark_log and b"authentication failed" in spark_log
    assert any(b"copies" in data for path, data in files.items() if "store" in path.parts)
    logged = [logging.Formatter().format(record) for record in caplog.records]
    assert any("dagster_jet_epochs" in text for text in logged), "of every statement"
    assert any(URL in text for text in shown), "its name is what is shown"
    assert any("org.apache.spark" in text for text in shown), "the JVM has a command line"
    for text in (at_start, in_tasks, *logged, *shown):
        assert WORD not in text
    assert [path for path, data in files.items() if WORD.encode() in data] == []
