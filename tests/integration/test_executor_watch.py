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
from dagster_jet.spark.cluster import joining
from dagster_jet.spark.cluster.executor_watch import ExecutorWatch
from dagster_jet.spark.cluster.joining import JoiningExecutors
from dagster_jet.spark.cluster.placement import Anchored
from dagster_jet.spark.runtime import SparkRuntime

from .world import wait_until

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


class FailsOnce(ExecutorWatch):
    """Its first look is an error in the JVM."""

    has_failed = False

    def _look(self) -> frozenset[str]:
        if not self.has_failed:
            self.has_failed = True
            assert self._session._jvm is not None
            self._session._jvm.java.util.ArrayList().get(1)
        return super()._look()


def test_a_watch_goes_on_after_an_error_in_the_jvm(spark: SparkSession) -> None:
    """Failed before: it took the error for the end of the session."""
    watch = FailsOnce(spark)
    try:
        wait_until(lambda: watch.has_failed, "the watch has looked")
        come_and_go(spark, "lost-4")
        began = time.monotonic()
        with pytest.raises(Exception, match="cancelled"):
            long(spark).collect()
        assert time.monotonic() - began < LONG_S / 2
    finally:
        watch.close()


def test_a_warm_up_that_fails_is_repeated(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Failed before: an executor whose warm-up Spark aborted never got shards."""
    monkeypatch.setattr(joining, "_AGAIN_S", 0.1)
    caplog.set_level("INFO", joining.__name__)
    executors = JoiningExecutors(spark, frozenset(), 1)  # as if this process had joined as one

    def has_failed() -> bool:
        spark.sparkContext.cancelJobsWithTag(executors._tag)
        return any("was not warmed up" in record.message for record in caplog.records)

    try:
        wait_until(has_failed, "a warm-up has failed")
        wait_until(lambda: executors.are_ready, "the executor is warm")
    finally:
        executors.close()


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
