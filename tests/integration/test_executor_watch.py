"""An executor that is lost ends the Spark jobs of those who had state on it, and of nobody else.

The loss is told to Spark's own bus, as its scheduler does: a session of one process has nobody to
lose. Real executors die in `test_cluster.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_jet.errors import ExecutorLostError
from dagster_jet.spark.cluster.executor_watch import ExecutorWatch
from dagster_jet.spark.cluster.placement import Anchored
from dagster_jet.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONG_S = 60.0


def come_and_go(spark: SparkSession, executor: str) -> None:
    """An executor that joins and is lost before anybody has looked."""
    jvm, context = spark._jvm, spark.sparkContext._jsc.sc()
    assert jvm is not None
    scheduler = jvm.org.apache.spark.scheduler
    none = getattr(jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
    info = scheduler.cluster.ExecutorInfo("elsewhere", 1, none)
    bus = context.listenerBus()
    bus.post(scheduler.SparkListenerExecutorAdded(1, executor, info))
    bus.post(scheduler.SparkListenerExecutorRemoved(2, executor, "a test wants it so"))


def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(LONG_S)
    yield from batches


def long(spark: SparkSession) -> DataFrame:
    return spark.range(1).mapInArrow(wait, "id long")


def test_a_job_that_would_wait_is_ended(spark: SparkSession) -> None:
    watch = ExecutorWatch(spark)
    try:
        watch.check()
        come_and_go(spark, "lost-1")
        began = time.monotonic()
        with pytest.raises(Exception, match="cancelled"):
            long(spark).collect()
        assert time.monotonic() - began < LONG_S / 2
        with pytest.raises(ExecutorLostError, match="started and ended"):
            watch.check()
    finally:
        watch.close()


def test_a_commit_that_would_wait_is_ended(spark: SparkSession) -> None:
    """Failed before: processors commit on the snapshots' thread, and no tag of the watch was on its
    Spark jobs."""
    runtime = SparkRuntime(spark, "watched", {}, 2)
    runtime._placement = Anchored(spark, 2)
    try:
        runtime.placement.place()
        come_and_go(spark, "lost-3")
        began = time.monotonic()
        with ThreadPoolExecutor(1) as snapshots:
            with pytest.raises(ExecutorLostError, match="started and ended"):
                snapshots.submit(runtime.run_on_shards, wait).result()
            assert time.monotonic() - began < LONG_S / 2
            assert not snapshots.submit(spark.sparkContext.getJobTags).result()
    finally:
        runtime.close()


def test_who_begins_afterwards_is_not_concerned(spark: SparkSession) -> None:
    first = ExecutorWatch(spark)
    come_and_go(spark, "lost-2")
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    with pytest.raises(ExecutorLostError):
        first.check()
    first.close()
    second = ExecutorWatch(spark)
    try:
        assert spark.range(3).count() == 3
        second.check()
    finally:
        second.close()
    assert spark.range(3).count() == 3
