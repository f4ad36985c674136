"""Columns of its sources' rows that a pipeline uses; the other columns are filled with nulls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from dagster_jet import Pipeline, Stage, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.connectors.files.fewer_columns import filling
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.runtime import SparkRuntime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "kind int, at timestamp, n bigint, person struct<id: bigint, name: string, "
    "home: struct<city: string, zip: int>>, tags array<struct<a: int, b: int>>"
)
OUT = sinks.files("/out", format="json")


class Told(FilesReader):
    """Records the columns that it is asked for."""

    columns: str | None = None

    def read_only(self, columns: Any) -> None:
        self.columns = columns.simpleString()


Used = Callable[[Callable[[Stage], Any]], str | None]


@pytest.fixture
def used(spark: SparkSession, tmp_path: Path) -> Used:
    """Returns a function that names the columns used by a pipeline, without the outer
    `struct<...>`."""

    def analysed(build: Callable[[Stage], Any]) -> str | None:
        pipeline = Pipeline("used")
        source = sources.files(str(tmp_path), format="json", schema=SCHEMA)
        build(pipeline.read_from(source, name="rows"))
        reader = Told(source, "used", "rows", None)
        analyse(SparkRuntime(spark, "used", {"rows": reader}, 1), pipeline.graph, 7)
        return None if reader.columns is None else reader.columns[len("struct<") : -1]

    return analysed


def timed(rows: Stage) -> Stage:
    return rows.with_timestamps("at")


def counted(rows: Stage, *keys: str, name: str = "counts") -> None:
    window = rows.group_by(*keys).window(windows.tumbling("1 s"))
    window.aggregate(c=agg.count(), name=name).write_to(
        sinks.files(f"/out/{name}", format="json"), name=f"{name}_out"
    )


def test_fields_of_structs_and_what_conditions_read(used: Used) -> None:
    def build(rows: Stage) -> None:
        counted(timed(rows).filter("kind = 1").select("at", "person.home.city AS city"), "city")

    assert used(build) == ("kind:int,at:timestamp,person:struct<home:struct<city:string>>")


def test_all_stages_behind_a_source_count_and_what_they_share_is_not_made_whole(
    used: Used,
) -> None:
    def build(rows: Stage) -> None:
        rows = timed(rows)
        counted(rows.filter("kind = 1").select("at", "person.name"), "name", name="a")
        counted(rows.select("at", "person.*", "n + 1 AS m").select("at", "id", "m"), "id", name="b")

    assert used(build) == ("kind:int,at:timestamp,person:struct<id:bigint,name:string>")


def test_what_a_sink_writes_is_read(used: Used) -> None:
    def build(rows: Stage) -> None:
        rows.select("n", "person", "tags").write_to(OUT, name="out")

    assert used(build) == (
        "n:bigint,person:struct<id:bigint,name:string,home:struct<city:string,zip:int>>,"
        "tags:array<struct<a:int,b:int>>"
    )


def test_event_time_is_read_though_nobody_else_looks_at_it(used: Used) -> None:
    def build(rows: Stage) -> None:
        timed(rows).select("n").write_to(OUT, name="out")

    assert used(build) == "at:timestamp,n:bigint"


def test_late_rows_for_a_sink_are_whole(used: Used) -> None:
    def build(rows: Stage) -> None:
        window = timed(rows).group_by("n").window(windows.tumbling("1 s"))
        counts = window.aggregate(c=agg.count(), name="counts")
        counts.write_to(OUT, name="out")
        counts.late_to(sinks.files("/late", format="json"), name="late")

    assert used(build) == used(lambda rows: rows.write_to(OUT, name="out"))


def test_functions_of_users_get_all_that_comes_to_them(used: Used) -> None:
    """In another epoch such functions may ask for more than now."""

    def build(rows: Stage) -> None:
        def asked(frame: Any) -> Any:
            return frame.select("at", F.upper("name").alias("k"))

        counted(timed(rows.select("at", "kind", "person.name")).transform(asked), "k")

    assert used(build) == "kind:int,at:timestamp,person:struct<name:string>"


def test_functions_of_values_get_what_they_ask_for(used: Used) -> None:
    def build(rows: Stage) -> None:
        upper = F.udf(lambda text: text.upper())("person.name").alias("k")
        counted(timed(rows).select("at", upper), "k")

    assert used(build) == "at:timestamp,person:struct<name:string>"


def test_a_transform_that_several_read_is_made_whole(used: Used) -> None:
    """The transform may fail on a null where there was none: none of its columns may be left
    out."""

    def build(rows: Stage) -> None:
        both = timed(rows).select(
            "at", "n", F.udf(lambda text: text.upper())("person.name"), "kind"
        )
        counted(both, "n", name="a")
        counted(both, "kind", name="b")

    assert used(build) == "kind:int,at:timestamp,n:bigint,person:struct<name:string>"


@pytest.mark.parametrize("function", ["input_file_name()", "input_file_block_start()"])
def test_who_asks_for_a_rows_file_gets_whole_rows(used: Used, function: str) -> None:
    def build(rows: Stage) -> None:
        asking = rows.transform(lambda f: f.selectExpr("n", f"{function} AS file"), per_epoch=True)
        asking.write_to(OUT, name="out")

    assert used(build) is None


def test_rows_are_filled_up_with_nulls(spark: SparkSession) -> None:
    there = "kind int, person struct<name: string, home: struct<zip: int>>"
    rows = spark.createDataFrame([(1, ("a", (5,))), (2, (None, None)), (3, None)], there)
    whole = spark.createDataFrame([], SCHEMA).schema
    filled = rows.select(*filling(rows.schema, whole))
    assert filled.schema.simpleString() == whole.simpleString()
    assert [row.asDict(recursive=True) for row in filled.select("kind", "person").collect()] == [
        {"kind": 1, "person": {"id": None, "name": "a", "home": {"city": None, "zip": 5}}},
        {"kind": 2, "person": {"id": None, "name": None, "home": None}},
        {"kind": 3, "person": None},
    ]
    assert filled.where("n IS NULL AND at IS NULL AND tags IS NULL").count() == 3
