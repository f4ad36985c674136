"""Where a test's Spark is: threads of this process, or executors of a cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from dagster_jet.spark.cluster.session import open_session

from . import child

CLUSTER = "local-cluster[2,2,1024]"
"""Two executors of two cores each: JVMs of their own, that share no memory and no runs."""
SPILLING = {
    "spark.shuffle.spill.numElementsForceSpillThreshold": "5000",
    "spark.sql.TungstenAggregate.testFallbackStartsAt": "1000, 2000",
}
"""Settings that make Spark spill after a few rows: sorts go to disk, hash aggregates sort."""
Run = Callable[..., Any]
"""Calls a function of a module with what follows it. `child.open_jet` opens the engine there."""


@contextmanager
def on_a_cluster(settings: Mapping[str, str] | None = None) -> Iterator[Run]:
    """Runs on a cluster, in a process of its own, as a process has only one Spark.

    Args:
        settings: of the session; without them a small cluster of this process's own.
    """
    settings = settings or {"spark.master": CLUSTER, "spark.executor.memory": "768m"}
    settings = {**SPILLING, **settings}
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawned) as process:
        try:
            assert process.submit(_begin, settings).result() == settings["spark.master"]
            yield lambda function, *args: process.submit(function, *args).result()
        finally:
            process.submit(_end).result()


def here(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _begin(settings: dict[str, str]) -> str:
    child.SPARK.update(settings)
    return str(open_session(child.SPARK).sparkContext.master)


def _end() -> None:
    """Stops Spark: otherwise executors are replaced for as long as their JVM takes to end."""
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    if running is not None:
        running.stop()
