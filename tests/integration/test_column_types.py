"""Columns that come together: what Spark would convert at run time is refused at the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from dagster_jet import Pipeline, Secret, sinks, sources, tables
from dagster_jet import aggregates as agg
from dagster_jet.connectors.row_order import newest_per_key
from dagster_jet.connectors.type_ddl import type_ddl
from dagster_jet.contract import Sink
from dagster_jet.errors import PipelineError
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.planning.stateless import planning_of
from dagster_jet.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = {
    "a number and text": ("long", "string"),
    "text and a time": ("string", "timestamp"),
    "a number and a time": ("int", "date"),
    "inside of a struct": ("struct<x: long>", "struct<x: string>"),
    "inside of a list": ("array<string>", "array<double>"),
}
ONE_KIND = {
    "numbers": ("int", "long"),
    "decimals": ("decimal(10,2)", "long"),
    "times": ("date", "timestamp"),
}
"""Keys that compare exactly, and rows that merge only after a cast."""
LOSSY = {
    "digits of a long": ("long", "double"),
    "digits of a decimal": ("double", "decimal(20,0)"),
}


def merge(spark: SparkSession, one: str, two: str) -> None:
    p = Pipeline("types")
    left, right = (
        p.read_from(sources.files(f"/{name}", format="json", schema=f"k {type}"), name=name)
        for name, type in (("left", one), ("right", two))
    )
    both = left.merge(right, name="both")
    both.write_to(sinks.files("/out", format="json"), name="out")
    analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def look_up(spark: SparkSession, folder: Path, one: str, two: str) -> None:
    (folder / "table.json").write_text("")
    p = Pipeline("types")
    rows = p.read_from(sources.files("/in", format="json", schema=f"k {one}"), name="rows")
    table = tables.files(f"{folder}/table.json", format="json", schema=f"k {two}, v long")
    named = rows.enrich(table, on="k", name="named")
    named.write_to(sinks.files("/out", format="json"), name="out")
    analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


@pytest.mark.parametrize(("one", "two"), REFUSED.values(), ids=REFUSED)
def test_types_that_would_fail_at_a_row(
    spark: SparkSession, tmp_path: Path, one: str, two: str
) -> None:
    types = [type.replace(": ", ":").replace("long", "bigint") for type in (one, two)]
    for build, stage, sides in (
        (lambda: merge(spark, one, two), "both", ("left", "right")),
        (lambda: look_up(spark, tmp_path, one, two), "named", ("rows", "the table")),
    ):
        with pytest.raises(PipelineError) as told:
            build()
        assert told.value.stage == stage and "'k'" in str(told.value)
        for type, side in zip(types, sides, strict=True):
            assert f"{type} in {side!r}" in str(told.value)


@pytest.mark.parametrize(("one", "two"), [*ONE_KIND.values(), *LOSSY.values()])
def test_rows_of_other_types_are_cast_before_they_merge(
    spark: SparkSession, tmp_path: Path, one: str, two: str
) -> None:
    with pytest.raises(PipelineError, match="job 'types', stage 'both': the column 'k' is"):
        merge(spark, one, two)
    if (one, two) in LOSSY.values():
        with pytest.raises(PipelineError, match="stage 'named': the column 'k' is"):
            look_up(spark, tmp_path, one, two)
    else:
        look_up(spark, tmp_path, one, two)


def iceberg_table(folder: Path) -> Sink:
    place: dict[str, str | Secret] = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    return sinks.iceberg("lake", "space.rows", catalog_options=place)


AT_THE_START: dict[str, tuple[str, Callable[[Path], Sink], str]] = {
    "a struct without fields into Parquet": (
        "from_json('{}', 'struct<>') AS c",
        lambda folder: sinks.files(str(folder), format="parquet"),
        "'c' has a struct without fields",
    ),
    "a struct without fields into Delta": (
        "array(from_json('{}', 'struct<>')) AS c",
        lambda folder: sinks.delta(str(folder)),
        "'c' has a struct without fields",
    ),
    "no type into Iceberg": (
        "null AS c",
        iceberg_table,
        "an Iceberg table cannot have the column 'c': null",
    ),
    "an interval inside of a list into Iceberg": (
        "array(make_dt_interval(n)) AS c",
        iceberg_table,
        r"an Iceberg table cannot have the column 'c': list<element: duration\[us\]>",
    ),
    "a key with a collation": (
        "s COLLATE UTF8_LCASE AS c",
        lambda folder: sinks.delta(str(folder), mode="upsert", key=["c"]),
        "'c' has the collation UTF8_LCASE and cannot be a key",
    ),
}


@pytest.mark.parametrize(("column", "sink", "said"), AT_THE_START.values(), ids=AT_THE_START)
def test_what_a_sink_cannot_hold_is_refused_before_a_row(
    spark: SparkSession, tmp_path: Path, column: str, sink: Callable[[Path], Sink], said: str
) -> None:
    p = Pipeline("types")
    rows = p.read_from(sources.files("/in", format="json", schema="n int, s string"), name="rows")
    rows.select("n", column).write_to(sink(tmp_path), name="out")
    with pytest.raises(PipelineError, match=f"job 'types', stage 'out': .*{said}"):
        analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def test_a_key_with_a_collation_is_refused(spark: SparkSession) -> None:
    p = Pipeline("types")
    rows = p.read_from(sources.files("/in", format="json", schema="s string"), name="rows")
    keyed = rows.select("s COLLATE UTF8_LCASE AS s").group_by("s")
    keyed.rolling_aggregate(n=agg.count(), name="counts").write_to(
        sinks.files("/out", format="json"), name="out"
    )
    with pytest.raises(PipelineError, match="stage 'counts': the column 's' has the collation"):
        analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def test_a_refusal_of_a_sink_that_renders_names_it(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 's' COLLATE UTF8_LCASE AS s, 1 AS v")
    with (
        pytest.raises(PipelineError, match="job 'types', stage 'out': the column 's' has"),
        planning_of("types", "out"),
    ):
        newest_per_key(rows, ["s"])


def test_a_type_that_tasks_do_not_have_names_the_sink(spark: SparkSession) -> None:
    p = Pipeline("types")
    rows = p.read_from(sources.files("/in", format="json", schema="n int"), name="rows")
    months = rows.select("make_ym_interval(n, 1) AS m")
    months.write_to(sinks.files("/out", format="json"), name="out")
    with pytest.raises(PipelineError, match=r"job 'types', stage 'out': .*not supported"):
        analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def test_names_of_fields_are_quoted_where_they_must_be(spark: SparkSession) -> None:
    inner = StructType([StructField("a b", LongType()), StructField("c`d", StringType())])
    odd = StructType(
        [
            StructField("e.f", ArrayType(inner)),
            StructField("plain", MapType(StringType(), inner)),
        ]
    )
    assert StructType.fromDDL(f"s {type_ddl(odd)}")["s"].dataType == odd
    plain = StructType([StructField("x", LongType())])
    assert type_ddl(plain) == plain.simpleString()


def test_rows_merge_by_name(spark: SparkSession) -> None:
    merge(spark, "struct<x: int, y: string>", "struct<x: int, y: string>")
    merge(spark, "int, v string", "int, V string")
    with pytest.raises(PipelineError, match="the column 'k' is"):
        merge(spark, "struct<x: int, y: int>", "struct<y: int, x: int>")
    for one, two, said in (
        ("int", "int, w int", "'left' has no column 'w', which 'right' has"),
        ("int, v int", "int", "'right' has no column 'v', which 'left' has"),
    ):
        with pytest.raises(PipelineError, match=f"stage 'both': {said}"):
            merge(spark, one, two)
