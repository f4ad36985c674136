"""The analysis of a pipeline finds its properties, and epochs use them as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.pipeline import Stage
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.input_statistics import InputRef

from .partitioned_log import PartitionedLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = sources.files("/in", format="json", schema="k string, ts bigint, v bigint")
LOG = PartitionedLog("/log", {"a": 1, "b": 1})


def planned(spark: SparkSession, source: Any, build: Callable[[Stage], Stage]) -> ExecutionPlan:
    p = Pipeline("planned")
    rows = build(p.read_from(source, name="rows"))
    counts = rows.group_by("k").window(windows.tumbling("1 s")).aggregate(n=agg.count(), name="n")
    counts.write_to(sinks.files("/out", format="json"), name="out")
    readers = {"rows": LOG.open("planned", "rows", None)} if source is LOG else {}
    return analyse(SparkRuntime(spark, p.name, readers, 1), p.graph, 7)


def keyed_by_everything(rows: DataFrame) -> DataFrame:
    return rows.withColumn("h", F.hash(*rows.columns))


def test_a_stage_right_behind_the_timestamps_counts_them(spark: SparkSession) -> None:
    plan = planned(spark, FILES, lambda rows: rows.with_timestamps("ts"))
    assert plan.timestamps["rows.timestamps"].counted_by == InputRef("n", 0)
    assert not plan.shared and not plan.partitioned and not plan.counted_sources
    assert plan.stages["n"].own_sinks == ("out",)
    assert set(plan.stage_plans()) == {"rows", "n"}


def test_rows_that_are_read_twice_are_shared_and_observed(spark: SparkSession) -> None:
    def build(rows: Stage) -> Stage:
        rows = rows.with_timestamps("ts")
        rows.write_to(sinks.files("/copy", format="json"), name="copy")
        return rows

    plan = planned(spark, FILES, build)
    assert plan.shared == {"rows.timestamps"}
    assert plan.timestamps["rows.timestamps"].counted_by is None


def test_sinks_that_render_from_arrow_are_written_in_one_pass(spark: SparkSession) -> None:
    p = Pipeline("planned")
    rows = p.read_from(FILES, name="rows")
    for name in ("json", "csv"):
        rows.write_to(sinks.files(f"/{name}", format=name), name=name)
    nested = rows.select("k", "struct(v) AS v")  # whose JSON is Spark's to render
    for name in ("json", "parquet"):
        nested.write_to(sinks.files(f"/nested-{name}", format=name), name=f"nested_{name}")
    plan = analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)
    assert {name: [n.name for n in all] for name, all in plan.one_pass.items()} == {
        "json": ["json", "csv"],
        "csv": ["json", "csv"],
    }
    projection = next(n.name for n in plan.graph if n.kind == "transform")
    assert plan.shared == {"rows", projection}


def test_rows_that_only_sinks_of_one_pass_read_are_not_shared(spark: SparkSession) -> None:
    p = Pipeline("planned")
    rows = p.read_from(FILES, name="rows")
    for name in ("json", "csv", "parquet"):
        rows.write_to(sinks.files(f"/{name}", format=name), name=name)
    assert not analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7).shared


def test_partitions_are_observed_where_nothing_loses_them(spark: SparkSession) -> None:
    plan = planned(spark, LOG, lambda rows: rows.select("k", "ts").with_timestamps("ts"))
    assert plan.partitioned == dict.fromkeys(plan.timestamps, "rows")
    projection = next(n.name for n in plan.graph if n.kind == "transform")
    assert plan.partition_columns == {"rows": (), projection: (SOURCE_PARTITION_COLUMN,)}


def test_a_transform_that_would_change_loses_them(spark: SparkSession) -> None:
    plan = planned(
        spark,
        LOG,
        lambda rows: rows.transform(keyed_by_everything, name="h").with_timestamps("ts"),
    )
    assert not plan.partitioned and not plan.partition_columns


def test_a_plan_is_frozen(spark: SparkSession) -> None:
    plan = planned(spark, FILES, lambda rows: rows.with_timestamps("ts"))
    with pytest.raises(FrozenInstanceError):
        plan.stages = {}
