"""Spark's Python workers, forked from our daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_are_forked_with_the_engine_in_them(spark: SparkSession) -> None:
    def tell(_: Iterator[int]) -> Iterator[tuple[str, str, bool]]:
        import os
        import sys

        import pyspark

        with open(f"/proc/{os.getppid()}/cmdline", encoding="utf-8") as parent:
            daemon = parent.read()
        yield pyspark.__file__, daemon, "dagster_jet.spark.tasks.fused_task" in sys.modules

    told = spark.sparkContext.parallelize(range(2), 2).mapPartitions(tell).collect()
    for package, daemon, is_imported in told:
        assert ".zip" not in package, "compiled again by every worker"
        assert "dagster_jet.spark.tasks.worker_daemon" in daemon
        assert is_imported
