"""Mistakes of users and faults around them: each has one documented answer."""

from __future__ import annotations

import json
import logging.handlers
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import Window
from pyspark.sql import functions as F

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources, tables, windows
from dagster_jet import aggregates as agg
from dagster_jet.dag import ItemProcessor
from dagster_jet.errors import (
    BadRowError,
    ConfigurationError,
    JetError,
    PipelineError,
    ProcessorError,
    ResultError,
    SnapshotInvalidError,
    SourceError,
    StoreCorruptedError,
    StoreUnwritableError,
    UserFunctionError,
)
from dagster_jet.execution.events import EpochCompleted, JobEvent
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.record import JobStatus, StopCause
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.store import FileMember
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long, long_but_for

from . import child, oracle
from .world import World, write_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "k string, ts long, v long"


def copying(
    world: World,
    change: Callable[[DataFrame], DataFrame] | None = None,
    *,
    format: str = "json",
    schema: str | None = SCHEMA,
    dead_letters: bool = False,
    out: str = "copy",
) -> Pipeline:
    """One source, event time, perhaps a transform, one sink."""
    options = {"header": "true"} if format == "csv" else {}
    p = Pipeline("copy")
    rows = p.read_from(
        sources.files(f"{world.folder}/in", format=format, schema=schema, options=options),
        name="rows",
    ).with_timestamps("ts")
    if dead_letters:
        rows = rows.dead_letter_to(
            sinks.files(f"{world.folder}/out/dead", format="json"), name="dead"
        )
    if change is not None:
        rows = rows.transform(change, name="change")
    rows.write_to(sinks.files(f"{world.folder}/out/{out}", format="json"), name="out")
    return p


def run(world: World, pipeline: Pipeline, **config: Any) -> None:
    settings = {"restart_attempts_max": 0, **config}
    with world.jet() as jet:
        jet.run(pipeline, JobConfig(**settings), until="completed")


def good(number: int) -> dict[str, Any]:
    return {"k": "a", "ts": number, "v": number}


# --- transforms that look at several rows ---------------------------------------------------------


def number_rows(frame: DataFrame) -> DataFrame:
    latest = Window.partitionBy("k").orderBy(F.desc("ts"))
    return frame.withColumn("n", F.row_number().over(latest)).where("n = 1").drop("n")


def with_averages(frame: DataFrame) -> DataFrame:
    return frame.join(frame.groupBy("k").agg(F.avg("v").alias("mean")), "k")


def in_groups(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").applyInPandas(lambda group: group, SCHEMA)


def with_totals(frame: DataFrame) -> DataFrame:
    """Joins a table that is not the stream."""
    table = frame.sparkSession.range(9).selectExpr("string(id) AS k", "id AS w")
    totals = table.dropDuplicates(["w"]).groupBy("k").agg(F.sum("w").alias("w")).orderBy("k")
    return frame.join(totals.limit(5), "k", "left")


SEVERAL_ROWS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "groupBy": (lambda f: f.groupBy("k", "ts").agg(F.sum("v").alias("v")), "aggregates.*window"),
    "count(*)": (lambda f: f.selectExpr("max(ts) AS ts"), "aggregates.*rolling_aggregate"),
    "dropDuplicates": (lambda f: f.dropDuplicates(["k"]), "looks for equal.*deduplicate"),
    "distinct": (lambda f: f.select("k", "ts").distinct(), "looks for equal.*deduplicate"),
    "limit": (lambda f: f.where("v > 1").limit(3).where("v > 2"), "takes some.*top_n"),
    "window": (number_rows, "window function.*map_stateful"),
    "sort": (lambda f: f.orderBy("ts"), "sorts.*top_n"),
    "sortWithinPartitions": (lambda f: f.sortWithinPartitions("ts"), "sorts"),
    "self-join": (with_averages, "aggregates"),
    "join": (lambda f: f.join(f.selectExpr("k", "v AS w"), "k"), r"itself.*join\("),
    "applyInPandas": (in_groups, "groups of rows.*map_stateful"),
    "except": (lambda f: f.exceptAll(f.where("v > 1")), "aggregates|compares sets"),
}
ROW_BY_ROW: dict[str, Callable[[DataFrame], DataFrame]] = {
    "functions": lambda f: f.withColumn("w", F.sqrt("v")).where("w > 1").repartition(3),
    "more rows": lambda f: f.withColumn("w", F.explode(F.array("v", "ts"))),
    "both": lambda f: f.where("v > 1").union(f.where("v < 1")),
    "a table": with_totals,
    "Python": lambda f: f.mapInPandas(lambda frames: frames, SCHEMA),
}


def prepare(spark: SparkSession, change: Callable[[DataFrame], DataFrame], **options: Any) -> None:
    """Analyses a transform behind another, in front of a window."""
    p = Pipeline("looks")
    rows = p.read_from(sources.files("in", format="json", schema=SCHEMA), name="rows")
    rows = rows.with_timestamps("ts").filter("v > 0").transform(change, name="change", **options)
    counts = rows.window(windows.tumbling("1 second")).aggregate(n=agg.count(), name="counts")
    # What is behind a stateful stage is another frame: its state is over all epochs.
    counts.select("n").write_to(sinks.files("out", format="json"), name="out")
    analyse(SparkRuntime(spark, p.name, {}, 1), p.graph, 7)


def test_a_transform_that_looks_at_several_rows_is_refused(spark: SparkSession) -> None:
    for change, said in SEVERAL_ROWS.values():
        with pytest.raises(PipelineError, match=f"job 'looks', stage 'change': .*{said}"):
            prepare(spark, change)
        prepare(spark, change, per_epoch=True)
    for change in ROW_BY_ROW.values():
        prepare(spark, change)


# --- the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize("java_home", [pytest.param(None, marks=long), "/nowhere"])
def test_missing_java(tmp_path: Path, java_home: str | None) -> None:
    points = FailPoints(tmp_path / "points.log")
    env = {"PATH": str(tmp_path), "JAVA_HOME": java_home or ""}
    death = points.run([sys.executable, child.__file__, str(tmp_path), "{}"], "", env=env)
    assert death.returncode == 3, death.output
    assert "MissingEnvironmentError" in death.output and "Java 17" in death.output
    assert java_home is None or java_home in death.output


def test_a_jvm_that_ends_at_its_start_says_why(tmp_path: Path) -> None:
    points = FailPoints(tmp_path / "points.log")
    env = {"JAVA_TOOL_OPTIONS": "-Xmx1x", "TMPDIR": str(tmp_path)}
    death = points.run([sys.executable, child.__file__, str(tmp_path), "{}"], "", env=env)
    assert death.returncode == 3, death.output
    assert "MissingEnvironmentError" in death.output
    assert "ended at its start: Invalid maximum heap size: -Xmx1x" in death.output
    (log,) = tmp_path.glob("dagster-jet-spark-*/*.log")
    assert str(log) in death.output and "Could not create" in log.read_text("utf-8")


def test_unwritable_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    urls = [f"file://{tmp_path}/a", f"file://{tmp_path}/file/b", f"file://{tmp_path}/c"]
    with pytest.raises(StoreUnwritableError, match="file/b"):
        Jet(store=urls)


def test_unwritable_output_folder(world: World) -> None:
    write_input(world.folder / "in", 1, [good(1)])
    (world.folder / "out").write_text("not a folder")
    with pytest.raises(ConfigurationError, match=r"stage 'out'.*cannot be written"):
        run(world, copying(world))


def test_a_setting_that_does_not_exist() -> None:
    with pytest.raises(ConfigurationError, match="snapshot_intervall"):
        JobConfig(snapshot_intervall="1 second")  # type: ignore[call-arg]


# --- sources --------------------------------------------------------------------------------------


def test_a_source_folder_that_does_not_exist(world: World) -> None:
    with pytest.raises(SourceError, match=r"stage 'rows'.*/in' does not exist.*Create it"):
        run(world, copying(world))


@pytest.mark.parametrize(
    "line",
    [
        '{"k": "a", "ts": 3, "v": "three"}',
        '{"k": "a", "ts": 3,',
        pytest.param("[1, 2]", marks=long),
    ],
)
def test_a_json_row_that_does_not_fit_the_schema(world: World, line: str) -> None:
    path = write_input(world.folder / "in", 1, [good(1), good(2)])
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(BadRowError) as told:
        run(world, copying(world))
    for part in ("'copy'", "'rows'", f"{path}:3", line, "dead_letter_to()"):
        assert part in str(told.value)
    assert oracle.committed(world.folder / "out/copy", "kv") == Counter()


def test_a_bad_file_suspends_the_job_until_it_is_repaired(world: World) -> None:
    """The record keeps why; the next start goes on behind what was committed."""
    write_input(world.folder / "in", 1, [good(1)])
    bad = write_input(world.folder / "in", 2, [{**good(2), "v": "two"}])
    write_input(world.folder / "in", 3, [good(3)])
    pipeline, settings = copying(world), {"suspend_on_failure": True, "max_items_per_epoch": 1}
    with pytest.raises(BadRowError) as told:
        run(world, pipeline, snapshot_interval="0 ms", **settings)
    with world.jet() as jet:
        record = read_record(jet.store, "copy")
    assert record is not None
    assert (record.status, record.cause) == (JobStatus.SUSPENDED, StopCause.ERROR)
    assert record.failure is not None and f"{bad}:1" in record.failure
    assert record.failure in str(told.value) and "two" in record.failure
    assert record.lease is None
    assert not oracle.committed(world.folder / "out/copy", "v") - Counter([(1,)])

    write_input(world.folder / "in", 2, [good(2)])
    run(world, pipeline, **settings)
    with world.jet() as jet:
        record = read_record(jet.store, "copy")
    assert record is not None and record.status is JobStatus.COMPLETED
    assert (record.cause, record.failure) == (StopCause.COMPLETE, None)
    assert oracle.committed(world.folder / "out/copy", "v") == Counter([(1,), (2,), (3,)])


def test_a_csv_row_that_does_not_fit_the_schema(world: World) -> None:
    (world.folder / "in").mkdir()
    path = world.folder / "in/1.csv"
    path.write_text("k,ts,v\na,1,1\na,2,two\n")
    with pytest.raises(BadRowError) as told:
        run(world, copying(world, format="csv"))
    assert f"{path}:3: a,2,two" in str(told.value)


def test_a_parquet_file_of_another_type(world: World) -> None:
    (world.folder / "in").mkdir()
    table = pa.table({"k": ["a"], "ts": pa.array([1], pa.int64()), "v": ["not a number"]})
    pq.write_table(table, world.folder / "in/1.parquet")
    with pytest.raises(BadRowError, match=r"1\.parquet"):
        run(world, copying(world, format="parquet"))


def test_a_row_without_event_time(world: World) -> None:
    write_input(world.folder / "in", 1, [good(1), {"k": "a", "ts": None, "v": 2}])
    with pytest.raises(BadRowError, match=r"stage 'rows'.*1 rows have no event time") as told:
        run(world, copying(world))
    (path,) = (world.folder / "in").iterdir()
    assert told.value.position == f'{path}: {{"k":"a","v":2}}'


@pytest.mark.parametrize(
    ("stage", "time"),
    [
        ("window", 2**63 - 1),
        ("session", 2**63 - 1),
        ("window", -(2**63)),
        *(pytest.param(stage, 2**63 - 1, marks=long) for stage in ("sliding", "rolling")),
        *(pytest.param(stage, -(2**63), marks=long) for stage in ("sliding", "session", "rolling")),
    ],
)
def test_an_event_time_beyond_all_clocks(world: World, stage: str, time: int) -> None:
    """In the JVM or in a task, something that is added to it overflows: file and row are named."""
    write_input(world.folder / "in", 1, [good(1), good(3)])
    write_input(world.folder / "in", 2, [{"k": "b", "ts": time, "v": 2}])
    p = Pipeline("beyond")
    rows = p.read_from(
        sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="rows"
    ).with_timestamps("ts")
    grouped, n, name = rows.group_by("k"), agg.count(), "stage"
    result = {
        "window": lambda: grouped.window(windows.tumbling("1 s")).aggregate(name=name, n=n),
        "sliding": lambda: grouped.window(windows.sliding("3 s", "1 s")).aggregate(name=name, n=n),
        "session": lambda: grouped.window(windows.session("1 s")).aggregate(name=name, n=n),
        "rolling": lambda: grouped.rolling_aggregate(name=name, n=n),
    }[stage]()
    result.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with pytest.raises((ResultError, BadRowError), match=r"fit its type|outside the range") as told:
        run(world, p)
    position = str(told.value.position)
    assert position.startswith(f"{world.folder}/in/") and f'"ts":{time}' in position


@pytest.mark.parametrize(  # one whose tasks tell of it, and those whose operators do
    "stage",
    long_but_for(
        ("window", "session", "rolling", "deduplicate", "filtered"), "window", "session", "filtered"
    ),
)
def test_a_row_without_event_time_in_a_stage(world: World, stage: str) -> None:
    """Told by the stage's tasks where they see all rows; else its operator refuses them, which is
    before Spark's observation is looked at."""
    write_input(world.folder / "in", 1, [good(1), {"k": "a", "ts": None, "v": 2}, good(3)])
    p = Pipeline("bad")
    rows = p.read_from(
        sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="rows"
    ).with_timestamps("ts")
    grouped = rows.group_by("k")
    n, name = agg.count(), "stage"
    result = {
        "window": lambda: grouped.window(windows.tumbling("1 s")).aggregate(name=name, n=n),
        "session": lambda: grouped.window(windows.session("1 s")).aggregate(name=name, n=n),
        "rolling": lambda: grouped.rolling_aggregate(name=name, n=n),
        "deduplicate": lambda: grouped.deduplicate(within="1 s", name=name),
        "filtered": lambda: (
            rows.filter("v > 0").window(windows.tumbling("1 s")).aggregate(name=name, n=n)
        ),
    }[stage]()
    result.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with pytest.raises(BadRowError, match="rows have no event time") as told:
        run(world, p)
    at_operator = stage in ("session", "filtered")
    assert told.value.stage == ("stage" if at_operator else "rows")
    assert str(told.value.position).endswith('.json: {"k":"a","v":2}')
    assert not any((world.folder / "out").glob("[!._]*"))


@pytest.mark.parametrize("stage", long_but_for(("window", "session", "deduplicate"), "window"))
def test_a_row_that_loses_its_event_time_is_not_late(world: World, stage: str) -> None:
    """The pipeline has a sink for late rows, which are taken out in front of the stage."""
    for number in (1, 2, 3):
        write_input(world.folder / "in", number, [good(5_000 * number)])
    p = Pipeline("lost")
    rows = p.read_from(
        sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="rows"
    ).with_timestamps("ts")
    rows = rows.select("k", "nullif(ts, 10000) AS ts")
    n = agg.count()
    result = {
        "window": lambda: rows.window(windows.tumbling("1 s")).aggregate(name="stage", n=n),
        "session": lambda: rows.window(windows.session("1 s")).aggregate(name="stage", n=n),
        "deduplicate": lambda: rows.deduplicate(within="1 s", name="stage"),
    }[stage]()
    result.late_to(sinks.files(f"{world.folder}/late", format="json"), name="late")
    result.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with pytest.raises(BadRowError, match=r"job 'lost', stage 'stage': .*event time") as told:
        run(world, p, max_items_per_epoch=1)
    assert (told.value.job, told.value.stage) == ("lost", "stage")


def test_dead_letters_are_set_aside_with_reason(world: World) -> None:
    path = write_input(world.folder / "in", 1, [good(1), {"k": "a", "ts": None, "v": 2}, good(3)])
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"k": "a", "ts": 4, "v": "four"}\nnonsense\n')
    write_input(world.folder / "in", 2, [good(5)])
    with world.jet() as jet:
        result = jet.run(copying(world, dead_letters=True), until="completed")
    assert oracle.committed(world.folder / "out/copy", "v") == Counter([(1,), (3,), (5,)])
    dead = oracle.committed(world.folder / "out/dead", ("source", "reason", "raw"))
    reasons = Counter({(source, reason): n for (source, reason, _), n in dead.items()})
    assert set(reasons) == {("rows", "ts is null"), ("rows", "does not fit the schema")}
    raw = {raw for _, _, raw in dead}
    assert {"nonsense", '{"k": "a", "ts": 4, "v": "four"}'} <= raw and dead.total() == 3
    assert result.rows_in == 6


def test_a_source_file_that_changed_after_it_was_read(world: World) -> None:
    path = write_input(world.folder / "in", 1, [good(1)])
    with world.jet() as jet:
        jet.run(copying(world), until="drained")
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(good(2)) + "\n")
    with pytest.raises(SourceError, match="has changed since") as told:
        run(world, copying(world))
    assert str(path) in str(told.value)
    assert oracle.committed(world.folder / "out/copy", "v") == Counter([(1,)])


# --- tables to enrich with ------------------------------------------------------------------------


def enriching(world: World, table: str, content: str, schema: str, **enrich: Any) -> Pipeline:
    path = world.folder / table
    path.write_text(content, "utf-8")
    p = Pipeline("enriched")
    rows = p.read_from(
        sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="rows"
    )
    found = tables.files(str(path), format=path.suffix[1:], schema=schema)
    rows.enrich(found, on="k", name="names", **enrich).write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    return p


@pytest.mark.parametrize(
    ("table", "content", "said"),
    [
        ("t.csv", "k,name\na,Ada\nb,Bo\nb,Bob\n", "2 rows of the table have the key k='b'"),
        ("t.csv", "name,k\nAda,a\n", "schema: name, k; expected: k, name"),
        pytest.param("t.csv", "k\na\n", "schema: k; expected: k, name", marks=long),
        ("t.csv", "k,name\na,Ada\nb\n", "t.csv:3: b"),
        ("t.json", '{"k": "a", "name": "Ada"}\n{"k": "b", "name":\n', 't.json:2: {"k": "b"'),
    ],
)
def test_a_table_that_does_not_fit_its_schema(
    world: World, table: str, content: str, said: str
) -> None:
    """Neither nulls nor columns taken for each other, and not the stream's dead letters."""
    write_input(world.folder / "in", 1, [good(1)])
    with pytest.raises(BadRowError) as told:
        run(world, enriching(world, table, content, "k string, name string"))
    for part in ("job 'enriched', stage 'names', position", f"{world.folder}/{table}", said):
        assert part in str(told.value)
    assert not any((world.folder / "out").glob("[!._]*"))


def test_columns_that_stream_and_table_share(world: World) -> None:
    write_input(world.folder / "in", 1, [good(1)])
    table = "t.csv", "k,V,name\na,7,Ada\n", "k string, V long, name string"
    with pytest.raises(PipelineError, match=r"stage 'names': two columns would be named 'V'"):
        run(world, enriching(world, *table, suffix=""))
    run(world, enriching(world, *table))
    (file,) = (world.folder / "out").glob("part-*")
    assert json.loads(file.read_text(), object_pairs_hook=list) == [
        *(("k", "a"), ("ts", 1), ("v", 1)),
        *(("V_right", 7), ("name", "Ada")),
    ]


# --- functions and definitions --------------------------------------------------------------------


def test_a_function_that_raises_when_it_is_built(world: World) -> None:
    def change(frame: DataFrame) -> DataFrame:
        raise KeyError("oops")

    write_input(world.folder / "in", 1, [good(1)])
    with pytest.raises(UserFunctionError, match=r"stage 'change'.*raised KeyError: 'oops'"):
        run(world, copying(world, change))


def test_a_function_that_returns_something_else(world: World) -> None:
    write_input(world.folder / "in", 1, [good(1)])
    with pytest.raises(
        UserFunctionError, match=r"stage 'change'.*returned int, not a DataFrame of Spark"
    ):
        run(world, copying(world, lambda frame: 1))


def test_a_function_that_raises_at_a_row(world: World) -> None:
    from pyspark.sql import functions as F

    def change(frame: DataFrame) -> DataFrame:
        divide = F.udf(lambda v: 100 // v, "long")
        return frame.withColumn("v", divide("v"))

    write_input(world.folder / "in", 1, [good(1)])
    write_input(world.folder / "in", 2, [good(0)])
    with pytest.raises(UserFunctionError, match=r"stage 'change'.*ZeroDivisionError"):
        run(world, copying(world, change), max_items_per_epoch=1)
    with world.jet() as jet:
        record = read_record(jet.store, "copy")
    assert record is not None and "ZeroDivisionError" in (record.failure or "")

    write_input(world.folder / "in", 2, [good(0)])  # the same bytes: only the function changes
    run(world, copying(world))
    assert oracle.committed(world.folder / "out/copy", "v") in (
        Counter([(100,), (0,)]),  # the first epoch was in a snapshot already
        Counter([(1,), (0,)]),
    )


@long  # one raises in test_masters.py
def test_an_aggregate_that_raises(world: World) -> None:
    def add(total: int, row: dict[str, Any]) -> int:
        raise ValueError("no")

    write_input(world.folder / "in", 1, [good(1)])
    total = agg.custom(int, add, max, int, columns=["v"], result_type="bigint")
    p = Pipeline("custom")
    rows = p.read_from(
        sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="rows"
    ).with_timestamps("ts")
    rows.group_by("k").rolling_aggregate(total=total, name="totals").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    with pytest.raises(UserFunctionError, match=r"^job 'custom', stage 'totals': .*ValueError: no"):
        run(world, p)


@long  # one raises in test_masters.py
def test_a_processor_that_raises(world: World) -> None:
    class Raising(ItemProcessor):
        def process_item(self, ordinal: int, item: Any) -> bool:
            raise ValueError("no")

    write_input(world.folder / "in", 1, [good(1)])
    p = Pipeline("raising")
    rows = p.read_from(
        sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="rows"
    )
    rows.apply_processor(Raising, output_schema=SCHEMA, name="own").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    with pytest.raises(ProcessorError, match=r"^job 'raising', stage 'own', .*process\(\).*no"):
        run(world, p)


def test_a_column_that_does_not_exist(world: World) -> None:
    write_input(world.folder / "in", 1, [good(1)])
    written = logging.handlers.BufferingHandler(10)
    PySparkLogger.getLogger("SQLQueryContextLogger").addHandler(written)
    with pytest.raises(PipelineError, match=r"stage 'change'.*nonsuch"):
        run(world, copying(world, lambda frame: frame.where("nonsuch > 1")))
    assert written.buffer == [], "PySpark would write the stack to the terminal, too"


def test_two_stages_of_one_name(world: World) -> None:
    p = Pipeline("twice")
    rows = p.read_from(sources.files("/x", format="parquet"), name="rows").with_timestamps("ts")
    hourly = rows.group_by("k").window(windows.tumbling("1 hour"))
    hourly.aggregate(n=agg.count(), name="counts")
    with pytest.raises(PipelineError, match=r"two stages are named 'counts'.*its own"):
        hourly.aggregate(n=agg.count(), name="counts")
    with pytest.raises(PipelineError, match=r"'rows' \(a source and a sink\)"):
        rows.write_to(sinks.files("/y", format="json"), name="rows")


# --- output folders -------------------------------------------------------------------------------


def test_the_output_folder_of_another_job(world: World) -> None:
    write_input(world.folder / "in", 1, [good(1)])
    run(world, copying(world))
    other = Pipeline("other")
    rows = other.read_from(
        sources.files(f"{world.folder}/in", format="json", schema=SCHEMA), name="rows"
    )
    rows.write_to(sinks.files(f"{world.folder}/out/copy", format="json"), name="out")
    before = world.visible()
    with pytest.raises(ConfigurationError, match=r"belongs to 'copy/out'.*folder of its own"):
        run(world, other)
    assert world.visible() == before


def test_output_of_an_earlier_life_and_a_fresh_store(world: World) -> None:
    write_input(world.folder / "in", 1, [good(1)])
    run(world, copying(world))
    shutil.rmtree(world.folder / "store")
    before = world.visible()
    for _ in range(2):  # the refusal itself must not make the job a known one
        with pytest.raises(ConfigurationError, match="earlier life of this job"):
            run(world, copying(world))
    assert world.visible() == before


# --- the store's copies ---------------------------------------------------------------------------


def damage(world: World, member: str, how: str, wanted: str) -> int:
    """Damages a member's copies of all state values whose key contains `wanted`."""
    place = FileMember(f"{world.folder}/store/{member}")
    keys = [key for key in place.list_keys(b"map/") if wanted.encode() in key]
    values = dict(zip(keys, place.get_many(keys), strict=True))
    spoilt = {key: _spoil(value, how) for key, value in values.items() if value is not None}
    place.put_many(spoilt)
    place.close()
    return len(spoilt)


def _spoil(value: bytes, how: str) -> bytes:
    if how == "truncated":
        return value[: len(value) // 2]
    middle = len(value) // 2
    return value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]


@pytest.mark.parametrize("how", [pytest.param("truncated", marks=long), "bit-flipped"])
def test_values_damaged_in_one_member(world: World, how: str) -> None:
    """Read from the other replica, repaired and counted; the job notices nothing."""
    world.fill(files=3)
    world.run(until="drained")
    assert damage(world, "a", how, "") > 10
    with world.jet() as jet:
        chunks = jet.store.map(f"jobs/{child.JOB}/state")
        keys = chunks.keys("counts/")
        chunks.get_all(keys)
        held = sum("/a" in jet.store.table.replicas[key.partition][0] for key in keys)
        assert chunks.stats.repaired >= held > 0
        chunks.get_all(keys)
        assert chunks.stats.repaired < 2 * len(keys)
    world.fill(files=3, first=3)
    world.run()
    world.assert_exactly_once()


@pytest.mark.parametrize("how", [pytest.param("truncated", marks=long), "bit-flipped"])
@pytest.mark.parametrize("wanted", ["counts/", pytest.param("manifest/", marks=long)])
def test_values_damaged_in_all_members(world: World, how: str, wanted: str) -> None:
    """Refused, with the name of what is missing; nothing is written."""
    world.fill(files=3)
    world.run(until="drained")
    before = world.visible()
    assert sum(damage(world, member, how, wanted) for member in "abc") > 0
    world.fill(files=3, first=3)
    with pytest.raises((StoreCorruptedError, SnapshotInvalidError)) as told:
        world.run(restart_attempts_max=0)
    assert wanted in str(told.value) and "partition" in str(told.value)
    assert "damaged on" in str(told.value)
    assert world.visible() == before


@pytest.mark.parametrize("wanted", ["manifest/", pytest.param("counts/", marks=long)])
def test_values_gone_from_all_members(world: World, wanted: str) -> None:
    world.fill(files=3)
    world.run(until="drained")
    for member in "abc":
        place = FileMember(f"{world.folder}/store/{member}")
        place.delete_many([key for key in place.list_keys(b"map/") if wanted.encode() in key])
        place.close()
    with pytest.raises(SnapshotInvalidError, match=r"missing|not"):
        world.run(restart_attempts_max=0)


def test_a_member_folder_deleted_while_running(world: World) -> None:
    """With one backup nothing is lost, but a snapshot needs every replica: snapshots fail, the
    job says so, and its output stays exactly-once when the member is back or was replaced."""
    world.fill(files=6)
    lost = world.folder / "store" / "b"
    kept = world.folder / "kept"

    def lose_member(event: JobEvent) -> None:
        world.events.append(event)
        if isinstance(event, EpochCompleted) and event.epoch_id == 3 and lost.exists():
            os.rename(lost, kept)

    with world.jet(member_timeout="off") as jet:
        with pytest.raises(JetError) as told:
            jet.run(
                child.crash_pipeline(world.folder),
                JobConfig(**child.CONFIG, restart_attempts_max=1),
                until="completed",
                on_event=lose_member,
            )
        record = read_record(jet.store, child.JOB)
    assert "/store/b" in str(told.value)
    assert record is not None and record.lease is None, "it has given up, and says so"
    assert record.status is JobStatus.NOT_RUNNING
    assert str(record.failure).startswith("gave up after 2 failed executions: ")
    world.assert_nothing_doubled()
    shutil.rmtree(lost, ignore_errors=True)
    os.rename(kept, lost)
    world.run()
    world.assert_exactly_once()
