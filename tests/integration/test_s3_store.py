"""A job whose store is a bucket of moto's server: its one member decides by conditional requests.
The driver is killed, or sleeps until another one has taken over; the verdict is the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_jet import Jet
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long
from tests.servers.members import AwsServer

from . import child
from .crash_table import AFTER_DECISION, Crash
from .world import World, known_to_tasks

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from pyspark.sql import SparkSession

BUCKET = "store"
ENDPOINT = "JET_TEST_STORE_ENDPOINT"
CRASHES = (
    Crash("start", "claim.after:1=kill"),
    Crash("F6", "manifest.after:3=kill"),
    Crash("F8", AFTER_DECISION),
    Crash("S8", "record.committed.after:2=kill"),
)


class StoreInBucket(World):
    """A world whose store is one member, `s3://store/<name of the folder>`."""

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.folder.name}?endpoint_url={os.environ[ENDPOINT]}"

    def start_child(self, rules: str, *, own_jvm: bool = False, **order: Any) -> ForkServerProcess:
        place = {"members": [self.url], "backup_count": 0}
        return super().start_child(rules, own_jvm=own_jvm, jet=place, **order)

    def jet(self, members: Sequence[str] = "abc", backup_count: int = 1, **settings: Any) -> Jet:
        return super().jet([self.url], 0, **settings)


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[AwsServer]:
    """Known to this process, to its children, and to all their tasks."""
    with AwsServer() as started:
        started.create_bucket(BUCKET)
        with known_to_tasks(spark, {ENDPOINT: started.endpoint_url, **started.environment}):
            yield started


@pytest.fixture
def world(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, server: AwsServer
) -> StoreInBucket:
    return StoreInBucket(tmp_path, fail_points, spark)


@long  # members on S3 keep their contract in tests/contract, folders are killed in test_killed.py
@pytest.mark.parametrize("crash", CRASHES, ids=str)
def test_killed(world: StoreInBucket, crash: Crash) -> None:
    world.fill()
    world.run_child(crash.rules, sharded=crash.sharded)
    world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()


@long  # that of a store in folders is in test_crashes.py
def test_a_sleeping_driver_wakes_up_too_late(world: StoreInBucket) -> None:
    """It sleeps right after a write of the record: it begins the next one with what it wrote."""
    world.fill()
    with world.asleep("record.snapshot.after:3"):
        assert world.run().status is JobStatus.COMPLETED
        world.assert_exactly_once()
        with world.jet() as jet:
            record = read_record(jet.store, child.JOB)
    assert "ended by FencedError" in world.child_output.read_text("utf-8")
    with world.jet() as jet:
        assert read_record(jet.store, child.JOB) == record
    world.assert_exactly_once()
