"""Kafka, a window, Kafka; and Kafka, a window, PostgreSQL: five kills of one job each.

Of the driver at certain steps, of a worker in the middle of its work, and of the servers while they
are written to. The servers are these tests' own. `make soak` kills all of them at random.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dagster_jet import Job, JobConfig, JobStatus
from dagster_jet.execution.events import (
    ExecutionRestarting,
    SnapshotCommitted,
    SnapshotFailed,
)
from tests.integration import child
from tests.long import long
from tests.servers import SharedServer, launch, own_folder, stop
from tests.servers import kafka as kafka_server
from tests.servers import postgres as postgres_server

from ..world import World, wait_until
from . import kafka_child, sql_child
from .kafka_job import KafkaPipelineWorld
from .kafka_world import KafkaWorld
from .sql_job import SqlWorld, new_tables

CONFIG = {**child.CONFIG, "max_items_per_epoch": 12}


class Server:
    """One that is killed, and comes back with what it had."""

    def __init__(self, kind: str, prepared: Any) -> None:
        self.folder = own_folder(kind)
        self._launch = lambda: launch(kind, self.folder, prepared(self.folder))
        self.running: SharedServer = self._launch()

    def kill(self) -> None:
        stop(self.running, signal.SIGKILL)

    def restart(self) -> None:
        self.running = self._launch()


@pytest.fixture(scope="module")
def broker() -> Iterator[Server]:
    server = Server("kafka", kafka_server.prepared)
    yield server
    stop(server.running)


@pytest.fixture
def database() -> Iterator[Server]:
    server = Server("postgres", postgres_server.prepared)
    yield server
    stop(server.running)


@long
def test_kafka_to_kafka(world: World, broker: Server) -> None:
    """The driver three times, a worker, the broker. `test_kafka.py` kills at the same steps; worker
    and broker are killed below, too; `test_kafka_outage.py` writes to one that is away."""
    made = KafkaPipelineWorld(world.folder, world.fail_points, world.spark)
    made.set_up(KafkaWorld(broker.running.facts["servers"]))
    # In a transaction that nobody will commit; committed, the record does not know; fenced.
    for number, moment in enumerate(("commit.produced", "commit.after", "fenced")):
        made.send(3, first=3 * number)
        made.run_child(f"kafka.{moment}:2=kill", config=CONFIG)
        made.assert_nothing_doubled()
    with made.jet() as jet:
        p = kafka_child.kafka_pipeline(made.folder)
        job = jet.submit(p, JobConfig(**CONFIG), on_event=made.see)
        kill_a_worker(made, lambda: made.send(3, first=9))
        kill_the_broker(made, broker, first=12)
        finish(job)
    made.assert_exactly_once()
    assert made.open_transactions() == set()


@long
def test_kafka_to_postgresql(world: World, broker: Server, database: Server) -> None:
    """The driver twice, a worker, the broker, the database."""
    made = SqlWorld(world.folder, world.fail_points, world.spark)
    try:
        made.use(new_tables(postgres_server.new_database(database.running)))
        made.read_from(KafkaWorld(broker.running.facts["servers"]))
        for number, moment in enumerate(("epoch.acked", "sql.commit.rows")):
            made.send(3, first=3 * number)
            made.run_child(f"{moment}:2=kill", config=CONFIG)
            made.assert_nothing_doubled()
        with made.jet() as jet:
            p = sql_child.sql_pipeline(made.folder)
            job = jet.submit(p, JobConfig(**CONFIG), on_event=made.see)
            kill_a_worker(made, lambda: made.send(3, first=6))
            kill_the_broker(made, broker, first=9)
            kill_the_database(made, database, first=15)
            finish(job)
        made.assert_exactly_once()
    finally:
        for environment in (os.environ, made.spark.sparkContext.environment):
            environment.pop(sql_child.URL, None)


def kill_a_worker(world: World, feed: Callable[[], None]) -> None:
    """One that has staged a part of its rows and has not said so yet."""
    before = len(world.fail_points.frozen)
    with world.rules_in_workers("staging.finished:1=freeze"):
        feed()
        wait_until(lambda: len(world.fail_points.frozen) > before, "a worker stands still")
        os.kill(world.fail_points.frozen[before], signal.SIGKILL)
    wait_until(lambda: bool(world.events_of(ExecutionRestarting)), "its task has failed")
    wait_for_a_commit(world, world.events.index(world.events_of(ExecutionRestarting)[0]))


def kill_the_broker(world: Any, broker: Server, first: int) -> None:
    """Kills the broker while there is input and output; it is away for as long as its start takes.
    The job waits in place: a task that reads waits longer than a test would."""
    world.send(3, first=first)
    before = len(world.events)
    broker.kill()
    broker.restart()
    seen = len(world.events)
    world.send(3, first=first + 3)
    wait_for_a_commit(world, seen)
    assert not any(isinstance(event, ExecutionRestarting) for event in world.events[before:])


def kill_the_database(world: Any, database: Server, first: int) -> None:
    """Kills the database until the job has met an error."""
    seen = len(world.events)
    database.kill()
    world.send(3, first=first)
    wait_until(lambda: any(is_trouble(e) for e in world.events[seen:]), "the job has met it")
    database.restart()
    wait_for_a_commit(world, seen)


def wait_for_a_commit(world: World, seen: int) -> None:
    """A new one, so that the job is met at work by whatever comes next."""
    wait_until(
        lambda: any(isinstance(e, SnapshotCommitted) for e in world.events[seen:]), "it goes on"
    )


def is_trouble(event: Any) -> bool:
    return isinstance(event, SnapshotFailed | ExecutionRestarting)


def finish(job: Job) -> None:
    assert job.complete(120).status is JobStatus.COMPLETED
