"""Pipelines whose results would be wrong in silence are refused before data flows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from dagster_jet import Pipeline, State, sinks, sources
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline import Stage
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, ts long, v long, v_right long"


def analysed(
    spark: SparkSession, build: Callable[[Stage], Stage], folder: str = "in", out: str = "out"
) -> None:
    p = Pipeline("wrong")
    source = sources.files(folder, format="json", schema=SCHEMA)
    built = build(p.read_from(source, name="rows").with_timestamps("ts"))
    built.write_to(sinks.files(out, format="json"), name="out")
    analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def echo(state: State[int], row: dict[str, Any]) -> dict[str, Any]:
    return row


DOUBLED: dict[str, Callable[[Stage], Stage]] = {
    "select": lambda rows: rows.select("k", "v", "ts AS v", name="s"),
    "transform": lambda rows: rows.transform(lambda f: f.selectExpr("v", "ts AS V"), name="s"),
    "join": lambda rows: rows.join(rows.select("k", "ts", "v"), on="k", within="1 s", name="s"),
    "map_stateful": lambda rows: rows.group_by("k").map_stateful(
        echo, create=int, output_schema="v long, V long", name="s"
    ),
}


@pytest.mark.parametrize("stage", DOUBLED)
def test_two_columns_of_one_name_are_refused_where_they_come_to_be(
    spark: SparkSession, stage: str
) -> None:
    """The error names the stage that makes the two columns, not the one that uses the name."""
    with pytest.raises(
        PipelineError, match=r"stage 's': .*(two columns|differ in case|both sides)"
    ):
        analysed(spark, lambda rows: DOUBLED[stage](rows).select("1 AS one"))


@pytest.mark.parametrize("name", ["__rows", "__Window_End", "__partition"])
def test_a_name_of_the_engines_columns_is_refused(spark: SparkSession, name: str) -> None:
    with pytest.raises(PipelineError, match=f"stage 's': the column name '{name}' is reserved"):
        analysed(spark, lambda rows: rows.select("k", f"v AS {name}", name="s").select("k"))


def test_a_sources_column_named_like_the_engines_is_refused(spark: SparkSession) -> None:
    p = Pipeline("wrong")
    rows = p.read_from(sources.files("in", format="json", schema="__corrupt string"), name="s")
    rows.write_to(sinks.files("out", format="json"), name="out")
    with pytest.raises(PipelineError, match="the column name '__corrupt' is reserved"):
        analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def test_versions_of_a_column_that_the_other_stream_lacks(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"stage 's': .*no column rule, .*; it has ts, v\b"):
        analysed(
            spark,
            lambda rows: rows.join_as_of(
                rows.select("k", "ts", "v"), on="k", versions_of="rule", name="s"
            ),
        )


def drawn_anew(frame: DataFrame) -> DataFrame:
    return frame.withColumn("id", F.uuid())


PER_EPOCH = {
    "monotonically_increasing_id()": "by epoch and task.*map_stateful",
    "ts + 1 + spark_partition_id()": "the tasks of an epoch",
    "input_file_name()": "for its file",
    "input_file_block_start()": "part of a file",
    "rand(7)": "a fixed seed, in rand",
}


@pytest.mark.parametrize("function", PER_EPOCH)
def test_a_function_whose_values_depend_on_epochs(spark: SparkSession, function: str) -> None:
    forms: list[Callable[[Stage], Stage]] = [
        lambda rows: rows.select("k", f"{function} AS x", name="change"),
        lambda rows: rows.filter(f"{function} = 1", name="change"),
        lambda rows: rows.transform(lambda f: f.withColumn("x", F.expr(function)), name="change"),
    ]
    for build in forms:
        with pytest.raises(PipelineError, match=f"stage 'change': .*{PER_EPOCH[function]}"):
            analysed(spark, build)
    change = lambda f: f.withColumn("x", F.expr(function))  # noqa: E731
    analysed(spark, lambda rows: rows.transform(change, per_epoch=True))


def test_a_column_that_draws_the_same_values_in_every_epoch(spark: SparkSession) -> None:
    """PySpark gives it a seed when it is made; a text gets one in each epoch."""
    for column in (F.uuid(), F.rand().alias("x")):
        with pytest.raises(PipelineError, match=r"stage 'change': .*a fixed seed"):
            analysed(spark, lambda rows, c=column: rows.select("k", c, name="change"))
    analysed(spark, lambda rows: rows.select("k", "uuid() AS id", "rand() AS x").filter("x < 0.1"))
    analysed(
        spark, lambda rows: rows.transform(lambda f: f.withColumn("id", F.uuid())).filter("k > 'a'")
    )


@pytest.mark.parametrize("pattern", ["in", "in/*.json", "*/*", "link"])
def test_a_sink_in_its_own_sources_folder(
    spark: SparkSession, tmp_path: Path, pattern: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(PipelineError, match=r"stage 'out': .*where the source 'rows' reads"):
        analysed(spark, lambda rows: rows, f"{tmp_path}/{pattern}", f"{tmp_path}/in")
    for other in ("out/deep", "in/.hidden", "in/sub/deep"):
        analysed(spark, lambda rows: rows, f"{tmp_path}/{pattern}", f"{tmp_path}/{other}")
