"""Origins of each column of a stage, as Spark has planned it; no job is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from dagster_jet import Pipeline, sinks, sources, tables, windows
from dagster_jet import aggregates as agg
from dagster_jet.pipeline.graph import Graph
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.planning.stage_columns import stage_columns
from dagster_jet.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SALES = sources.files(
    "/sales", format="json", schema="shop string, at timestamp, eur double, items array<string>"
)
VISITS = sources.files("/visits", format="json", schema="shop string, at timestamp, eur double")
OUT = sinks.files("/out", format="parquet")


def origins(spark: SparkSession, graph: Graph, stage: str) -> dict[str, str]:
    """Columns that each column is made of: "rows.eur rows.shop"."""
    plan = analyse(SparkRuntime(spark, "shops", {}, 1), graph, 7)
    found = stage_columns(plan)[stage]
    return {c.name: " ".join(f"{o.stage}.{o.column}" for o in c.origins) for c in found}


def of_transform(spark: SparkSession, function: Any, **options: Any) -> dict[str, str]:
    p = Pipeline("shops")
    p.read_from(SALES, name="rows").transform(function, **options).write_to(OUT, name="out")
    return origins(spark, p.graph, "out")


def test_whatever_a_transform_does_to_a_frame(spark: SparkSession) -> None:
    def function(rows: DataFrame) -> DataFrame:
        each = rows.filter("eur > 1").withColumn("item", F.explode("items"))
        return each.select(
            F.upper("shop").alias("name"),
            (F.col("eur") * 2 + F.length("shop")).alias("x"),
            "item",
            F.lit(1).alias("one"),
            F.struct("at", F.struct("eur").alias("inner")).alias("both"),
            F.when(F.col("eur") > 2, F.col("shop")).alias("shop"),
        )

    assert of_transform(spark, function) == {
        "name": "rows.shop",
        "x": "rows.eur rows.shop",
        "item": "rows.items",
        "one": "",
        "both": "rows.at rows.eur",
        "shop": "rows.eur rows.shop",
    }


def test_functions_in_python(spark: SparkSession) -> None:
    half = F.udf(lambda x: x / 2, "double")

    def whole_rows(frames: Iterator[Any]) -> Iterator[Any]:
        yield from frames

    by_column = of_transform(spark, lambda rows: rows.select(half("eur").alias("half")))
    assert by_column == {"half": "rows.eur"}
    by_frame = of_transform(
        spark, lambda rows: rows.select("shop", "eur").mapInPandas(whole_rows, "a string, b double")
    )
    assert by_frame == dict.fromkeys("ab", "rows.eur rows.shop"), "nobody sees into it"


def test_a_union_inside_of_a_transform(spark: SparkSession) -> None:
    def twice(rows: DataFrame) -> DataFrame:
        return rows.select("shop", "eur").unionAll(rows.selectExpr("string(at) as t", "eur"))

    assert of_transform(spark, twice) == {"shop": "rows.at rows.shop", "eur": "rows.eur"}


def test_selects_and_merges_and_ingestion_time(spark: SparkSession) -> None:
    p = Pipeline("shops")
    sales = p.read_from(SALES, name="sales").select("shop", "eur as spent")
    visits = p.read_from(VISITS, name="visits").select("shop", "0.0D as spent")
    merged = sales.merge(visits).with_ingestion_timestamps(column="seen")
    merged.write_to(OUT, name="out")
    assert origins(spark, p.graph, "out") == {
        "shop": "sales.shop visits.shop",
        "spent": "sales.eur",
        "seen": "",
    }


def test_through_stateful_stages(spark: SparkSession) -> None:
    p = Pipeline("shops")
    sales = p.read_from(SALES, name="sales").with_timestamps("at")
    visits = p.read_from(VISITS, name="visits").with_timestamps("at")
    first = sales.deduplicate(on="shop", within="1 hour", name="first")
    per_hour = first.group_by("shop").window(windows.tumbling("1 hour"))
    best = per_hour.aggregate(
        n=agg.count(), total=agg.sum("eur"), top=agg.top_n(2, "at", by="eur"), name="best"
    )
    best.write_to(sinks.files("/best", format="parquet"), name="best_out")
    both = sales.join(visits, on="shop", within="1 hour", name="both")
    both.write_to(sinks.files("/both", format="parquet"), name="both_out")
    assert origins(spark, p.graph, "first")["eur"] == "sales.eur"
    assert origins(spark, p.graph, "best") == {
        "shop": "first.shop",
        "window_start": "first.at",
        "window_end": "first.at",
        "n": "",
        "total": "first.eur",
        "top": "first.at first.eur",
    }
    assert origins(spark, p.graph, "best_out")["total"] == "best.total"
    joined = origins(spark, p.graph, "both")
    assert (joined["shop"], joined["eur"]) == ("sales.shop visits.shop", "sales.eur")
    assert joined["eur_right"] == "visits.eur"


def test_users_functions_over_state_get_whole_rows(spark: SparkSession) -> None:
    p = Pipeline("shops")
    rows = p.read_from(VISITS, name="rows").select("shop", "eur")
    sums = rows.group_by("shop").map_stateful(
        lambda state, row: row, create=dict, output_schema="shop string, sum double", name="sums"
    )
    sums.write_to(OUT, name="out")
    assert origins(spark, p.graph, "sums") == {"shop": "rows.shop", "sum": "rows.eur rows.shop"}


def test_tables_and_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"shop": ["a"], "eur": [1.0], "city": ["Ulm"]})
    pq.write_table(table, tmp_path / "shops.parquet")
    p = Pipeline("shops")
    rows = p.read_from(VISITS, name="rows").with_timestamps("at")
    rich = rows.enrich(tables.files(str(tmp_path / "shops.parquet")), on="shop", name="rich")
    per_city = rich.group_by("city").window(windows.tumbling("1 hour"))
    counted = per_city.aggregate(n=agg.count(), name="counted")
    counted.late_to(sinks.files("/late", format="parquet"), name="late")
    counted.write_to(OUT, name="out")
    expected = {
        "shop": "rows.shop",
        "at": "rows.at",
        "eur": "rows.eur",
        "eur_right": "rich.eur",
        "city": "rich.city",
    }
    assert origins(spark, p.graph, "late") == expected, "as the stage has received them"
    assert origins(spark, p.graph, "counted")["city"] == "rich.city"


@pytest.mark.parametrize("stage", ["rows", "out"])
def test_types_are_as_spark_has_them(spark: SparkSession, stage: str) -> None:
    p = Pipeline("shops")
    p.read_from(SALES, name="rows").write_to(OUT, name="out")
    plan = analyse(SparkRuntime(spark, "shops", {}, 1), p.graph, 7)
    types = {c.name: (c.type, c.nullable) for c in stage_columns(plan)[stage]}
    assert types["items"] == ("array<string>", True) and types["eur"] == ("double", True)
