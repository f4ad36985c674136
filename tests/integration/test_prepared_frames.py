"""Which frames are made once and run in every small epoch, and which have to be made in each."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from dagster_jet import Pipeline, sinks, sources, tables, windows
from dagster_jet import aggregates as agg
from dagster_jet.connectors.carried_rows import BYTES_MAX, ROWS_MAX, can_be_carried, carried_frame
from dagster_jet.connectors.files.files_source import FilesSource
from dagster_jet.contract import BadRowRule
from dagster_jet.operators.lateness import before_watermark
from dagster_jet.pipeline import LateStage, Stage
from dagster_jet.pipeline.graph import EnrichNode
from dagster_jet.spark.epoch_contract import EpochInput
from dagster_jet.spark.frames.column_names import map_in_arrow
from dagster_jet.spark.frames.prepared_frames import PreparedFrames, can_be_prepared
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.plans.repeatable import repeat
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.epoch_parameters import EpochParameters
from dagster_jet.spark.tasks.epoch_rows import IngestionTime, LateRows
from dagster_jet.spark.tasks.stage_input import StageInput

from .child import open_jet
from .small_epochs import made_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

SECOND = windows.tumbling("1 second")


def planned(spark: SparkSession, build: Callable[[Stage], Stage]) -> bool:
    p = Pipeline("planned")
    source = sources.files("/in", format="json", schema="k string, ts long, v long")
    rows = build(p.read_from(source, name="rows"))
    rows.write_to(sinks.files("/out", format="json"), name="out")
    plan = analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)
    return can_be_prepared(plan)


def windowed(rows: Stage) -> LateStage:
    return rows.group_by("k").window(SECOND).aggregate(n=agg.count(), name="counts")


def late_rows(rows: Stage) -> Stage:
    counts = windowed(rows.with_timestamps("ts"))
    counts.late_to(sinks.files("/late", format="json"), name="late")
    return counts


PREPARED: dict[str, Callable[[Stage], Stage]] = {
    "rows": lambda rows: rows,
    "columns and conditions": lambda rows: rows.filter("v > 1").select("k", "v + 1 AS v"),
    "windows": lambda rows: windowed(rows.with_timestamps("ts")),
    "sessions": lambda rows: (
        rows.with_timestamps("ts")
        .group_by("k")
        .window(windows.session("1 second"))
        .aggregate(n=agg.count(), name="visits")
    ),
    "late rows": late_rows,
    "the time of reading": lambda rows: windowed(rows.with_ingestion_timestamps(column="at")),
    "totals": lambda rows: rows.group_by("k").rolling_aggregate(n=agg.count(), name="totals"),
}
MADE_EACH_TIME: dict[str, Callable[[Stage], Stage]] = {
    "a function may look at the clock": lambda rows: rows.transform(lambda frame: frame),
    "a moment in a condition": lambda rows: rows.filter("timestamp_millis(ts) < timestamp'now'"),
    "a moment in a column": lambda rows: rows.select("k", "date ' TODAY' AS day"),
}  # fmt: skip


@pytest.mark.parametrize("build", PREPARED.values(), ids=PREPARED)
def test_epochs_that_differ_in_what_tasks_are_told(spark: SparkSession, build: Any) -> None:
    assert planned(spark, build)


@pytest.mark.parametrize("build", MADE_EACH_TIME.values(), ids=MADE_EACH_TIME)
def test_epochs_that_differ_in_their_plans(spark: SparkSession, build: Any) -> None:
    assert not planned(spark, build)


def passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 10, 1, 1).mapInArrow(passed_on, "id long")


def test_plans_that_begin_from_nothing_in_each_run(rows: DataFrame) -> None:
    counted = rows.groupBy((F.col("id") % 2).alias("k")).agg(F.count("*").alias("n"))
    assert repeat(counted.where("n > 1").mapInArrow(passed_on, "k long, n long"),
                         several_readers=True)  # fmt: skip


def test_a_table_is_joined_as_it_was_read(spark: SparkSession, rows: DataFrame) -> None:
    table = spark.range(10).localCheckpoint().withColumnRenamed("id", "n")
    joined = rows.join(F.broadcast(table), rows.id == table.n)
    assert repeat(joined, several_readers=True)


def test_a_table_that_is_read_anew_ends_the_frames_that_were_joined_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "names.json").write_text('{"k": "a", "name": "A"}\n')
    p = Pipeline("enriched")
    source = sources.files("/in", format="json", schema="k string, v long")
    names = tables.files(
        str(tmp_path / "names.json"), format="json", schema="k string, name string"
    )
    rows = p.read_from(source, name="rows").enrich(names, on="k", refresh="1 hour", name="named")
    rows.write_to(sinks.files("/out", format="json"), name="out")
    runtime = SparkRuntime(spark, p.name, {}, 1)
    plan = analyse(runtime, p.graph, 7)
    prepared, cached = PreparedFrames(plan, runtime), runtime.tables
    barrier = Barrier("enriched", 1, 1, 1, None, str(tmp_path / "work"), 7, None)
    epoch = EpochInput(barrier, {}, {}, {}, {}, 0, few_groups=True, few_rows=True)
    first = prepared.of(epoch)
    assert first is not None and prepared.of(epoch) is first
    cached.close()
    assert prepared.of(epoch) is None, "it is due: frames of the epoch's own read it"
    cached.frame(cast(EnrichNode, p.graph["named"]), plan.stream_columns["named"])
    second = prepared.of(epoch)
    assert second is not None and second is not first


def test_results_that_sinks_render_are_kept_for_one_epoch_at_a_time(spark: SparkSession) -> None:
    """The rows pass through Spark between two tasks. The frame in between is cached anew in each
    epoch; the rest is made once."""
    p = Pipeline("rendered")
    source = sources.files("/in", format="json", schema="k string, ts long, v long")
    counts = windowed(p.read_from(source, name="rows").with_timestamps("ts"))
    with_headers = counts.select("*", "map('k', k) AS h")
    out = sinks.kafka("localhost:1", topic="counts", key="k", headers="h")
    with_headers.write_to(out, name="out")
    runtime = SparkRuntime(spark, p.name, {}, 1)
    prepared = PreparedFrames(analyse(runtime, p.graph, 7), runtime)
    barrier = Barrier("rendered", 1, 1, 1, None, "/work", 7, None)
    stages = {"counts": StageInput((), None, None, None)}
    epoch = EpochInput(barrier, {}, stages, {}, {}, 0, few_groups=True, few_rows=True)
    first = prepared.of(epoch)
    assert first is not None and first.shared
    first.release()
    assert prepared.of(epoch) is first


def test_rows_of_all_types_pass_the_tasks_that_know_the_epoch(spark: SparkSession) -> None:
    rows = spark.range(0, 6, 1, 1).selectExpr(
        "id", "named_struct('a', id, 'b', array(cast(id AS string), null)) AS s",
        "map('x', if(id = 1, null, id)) AS m", "cast(id AS decimal(20, 3)) AS d",
        "timestamp_millis(id) AS t", "timestamp_ntz'2024-01-01' AS n", "interval '1' day AS i",
        "cast('x' AS binary) AS `a.b`", "if(id = 2, null, id) AS moment",
    )  # fmt: skip
    barrier = Barrier("types", 1, 1, 1, None, "/work", 7, None)
    stages = {"stage": StageInput((), before_ms=4, after_ms=None, expired_until_ms=None)}
    EpochParameters(barrier, stages, {}, {"read": 1_234}).hand_on(spark.sparkContext)
    timed = rows.select("*", F.col("moment").alias("__moment"))
    late = map_in_arrow(timed, LateRows("stage", before_watermark), rows.schema, "stage")
    assert late.collect() == rows.where("moment < 4").collect() != []
    with_time = StructType([*rows.schema, StructField("at", TimestampType(), False)])
    read = map_in_arrow(rows, IngestionTime("read", "at"), with_time, "stage")
    wanted = rows.withColumn("at", F.timestamp_millis(F.lit(1_234)))
    assert read.collect() == wanted.collect()


LATCHED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a seed": lambda rows: rows.select(F.rand()),
    "the time": lambda rows: rows.select(F.current_timestamp()),
    "the date": lambda rows: rows.where("current_date() > date'2024-01-01'"),
    "a shuffle": lambda rows: rows.repartition(2),
    "a broadcast": lambda rows: rows.join(F.broadcast(rows), "id"),
    **{
        sql: lambda rows, sql=sql: rows.selectExpr(f"{sql} AS x")
        for sql in (
            "cast('now' AS timestamp)",
            "cast(' Today ' AS date)",
            "to_date('yesterday')",
            "try_cast(concat('tomor', 'row') AS timestamp_ntz)",
            "timestamp_millis(id) > 'now'",
            "localtimestamp()",
            "unix_timestamp()",
            "current_user()",
            "current_timezone()",
            "current_database()",
            "uuid()",
            "rand(1)",
            "spark_partition_id()",
            "input_file_name()",
            "(SELECT 1)",
            "id IN (SELECT 1)",
        )
    },
    "a function that says so": lambda rows: rows.select(
        F.udf(lambda v: v).asNondeterministic()("id")
    ),
    "a subquery": lambda rows: rows.where(
        F.col("id") > rows.select(F.max("id").alias("m")).scalar()
    ),
}
"""Transforms whose second run would see results of the first one."""


@pytest.mark.parametrize("made", LATCHED.values(), ids=LATCHED)
def test_plans_that_keep_something_of_their_first_run(rows: DataFrame, made: Any) -> None:
    assert not repeat(made(rows), several_readers=False)


def test_a_variable_and_a_view_may_be_others_in_the_next_run(
    spark: SparkSession, rows: DataFrame
) -> None:
    spark.sql("DECLARE OR REPLACE VARIABLE least int DEFAULT 5")
    spark.createDataFrame([], "id long").createOrReplaceTempView("excluded")
    try:
        for condition in ("id > least", "id NOT IN (SELECT id FROM excluded)"):
            assert not repeat(rows.where(condition), several_readers=False)
    finally:
        spark.sql("DROP TEMPORARY VARIABLE least")
        spark.catalog.dropTempView("excluded")


def test_numbers_of_rows_begin_anew_in_each_run(rows: DataFrame) -> None:
    assert repeat(rows.select(F.monotonically_increasing_id()), several_readers=True)


def test_a_date_as_text_is_the_same_in_each_run(rows: DataFrame) -> None:
    condition = "timestamp_millis(id) > '2024-01-01' AND 'now' <> 'today'"
    assert repeat(rows.where(condition), several_readers=True)


def test_a_cache_is_of_its_first_run(rows: DataFrame) -> None:
    kept = rows.persist()
    try:
        assert not repeat(kept.select("id"), several_readers=False)
    finally:
        kept.unpersist()


def test_users_functions_see_a_row_once(rows: DataFrame) -> None:
    """A function's results may differ between calls, yet two branches must see the same one."""

    def token() -> Column:
        return F.udf(lambda _: uuid.uuid4().hex)("id")

    assert repeat(rows.select(token()), several_readers=False)
    assert not repeat(rows.select(token()), several_readers=True)


FILES = {
    "json": '{"k": "a", "ts": 1, "v": 2}\n\n{"k": "b"}\n{"k": 3, "ts": "x"}\nno object\n',
    "csv": "k,ts,v\na,1,2\nb,,\n3,x,\n\n",
}


@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize("rule", [None, BadRowRule(("ts",))], ids=["", "dead letters"])
def test_files_have_the_same_rows_either_way(
    spark: SparkSession, tmp_path: Path, format: str, rule: BadRowRule | None
) -> None:
    text = FILES[format] if rule else FILES[format].replace("3,x,", "3,,").split('{"k": 3')[0]
    (tmp_path / f"a+b %41 ä.{format}").write_text(text)
    options = (("header", "true"),) if format == "csv" else ()
    source = FilesSource(str(tmp_path), format, "k string, ts long, v long", options)
    reader = source.open("job", "rows", rule)
    if format == "json":
        reader.read_only(cast(StructType, StructType.fromDDL("k string, ts long, v long")))
    reader.accept(reader.poll())
    split = reader.plan(10)
    assert split is not None
    parameters = reader.split_parameters(split)
    assert parameters is not None
    prepared = reader.prepared_frame(spark, lambda: parameters.what, 0)
    made = reader.frame(spark, split)
    assert prepared is not None
    assert sorted(prepared.rows.collect()) == sorted(made.rows.collect()) != []
    if rule is None:
        assert prepared.dead_letters is made.dead_letters is None
        return
    assert prepared.dead_letters is not None and made.dead_letters is not None
    letters = sorted(made.dead_letters.collect())
    assert sorted(prepared.dead_letters.collect()) == letters
    assert {row.position for row in letters} == {str(tmp_path / f"a+b %41 ä.{format}")}
    assert {row.reason for row in letters} == {"does not fit the schema", "ts is null"}


GENERATED = {
    "numbers": sources.sequence(rate=1_000),
    "auctions": sources.nexmark(count=500, rate=1_000),
}


@pytest.mark.parametrize("source", GENERATED.values(), ids=GENERATED)
def test_generated_rows_are_the_same_either_way(spark: SparkSession, source: Any) -> None:
    reader = source.open("job", "rows", None)
    reader.restore({"next": 7, "start_ms": 1_000}, None)
    reader.accept(1_400)
    for rows in (100, 200):
        split = reader.plan(rows)
        parameters = reader.split_parameters(split)
        prepared = reader.prepared_frame(spark, lambda what=parameters.what: what, 0)
        assert prepared is not None and repeat(prepared.rows, several_readers=True)
        found, made = (frame.rows.collect() for frame in (prepared, reader.frame(spark, split)))
        assert sorted(map(repr, found)) == sorted(map(repr, made)) and len(found) == rows


CARRIED = pa.table(
    {
        "n": pa.array([1, None], pa.int64()),
        "d": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "t": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc), None],
                      pa.timestamp("us", "UTC")),
        "day": pa.array([date(1890, 1, 2), None]),
        "b": pa.array([b"\x00", None]),
        "s": pa.array([{"x": [1.5, None]}, None]),
        "__position": pa.array(["0:1", None]),
    }
)  # fmt: skip


def test_rows_that_the_driver_has_read_are_the_same_either_way(spark: SparkSession) -> None:
    carried = carried_frame(spark, lambda: CARRIED, CARRIED.slice(0, 0), "rows")
    assert carried is not None and repeat(carried, several_readers=True)
    made = spark.createDataFrame(CARRIED)
    assert carried.schema == made.schema
    assert carried.collect() == made.collect()
    assert can_be_carried(CARRIED)
    assert not can_be_carried(pa.table({"n": pa.nulls(ROWS_MAX + 1, pa.int8())}))
    assert not can_be_carried(pa.table({"b": [bytes(BYTES_MAX)]}))


def test_rows_of_a_users_do_not_go_into_an_event_log() -> None:
    session = mock.MagicMock()
    session.sparkContext.getConf().get.return_value = "true"
    assert carried_frame(session, lambda: CARRIED, CARRIED, "rows") is None
    session.sparkContext.getConf().get.assert_called_with("spark.eventLog.enabled", "false")


def test_epochs_of_a_table_have_the_same_frames(spark: SparkSession, tmp_path: Path) -> None:
    """SQLite, with a writer beside the job: each epoch reads what was committed since."""
    path = tmp_path / "a.db"
    p = Pipeline("carried")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("create table t (id integer primary key, k text)")
        writer.executemany("insert into t values (?, ?)", [(n, f"k{n % 2}") for n in range(60)])
        writer.commit()
    rows = p.read_from(sources.sql(f"sqlite:///{path}", table="t", column="id"), name="rows")
    counts = rows.group_by("k").rolling_aggregate(n=agg.count(), name="counts")
    counts.write_to(sinks.files(str(tmp_path / "out"), format="json"), name="out")
    with open_jet(tmp_path, "a", 0) as jet:
        epochs, made = made_for(jet, p, rows=5)
    assert epochs >= 12 and made <= 3
    found = [json.loads(line) for path in (tmp_path / "out").glob("*.json")
             for line in path.read_text().splitlines()]  # fmt: skip
    assert {k: max(row["n"] for row in found if row["k"] == k) for k in ("k0", "k1")} == {
        "k0": 30, "k1": 30,
    }  # fmt: skip
