"""Functions that do something else in a later epoch than when the pipeline was analysed."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from dagster_jet import JobConfig, Pipeline, State, sinks, sources
from dagster_jet.contract import Lag, Source, SourceFrame, SourceReader
from dagster_jet.errors import (
    JetError,
    MissingEnvironmentError,
    PipelineError,
    SourceError,
    UserFunctionError,
)
from dagster_jet.events import EpochCompleted, JobEvent
from tests.long import long, long_but_for

from . import child
from .oracle import committed
from .partitioned_log import PartitionedLog
from .world import World, write_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "k string, ts long, v long"


def run(world: World, p: Pipeline, *, one_by_one: bool = True) -> None:
    config = JobConfig(restart_attempts_max=0, max_items_per_epoch=1 if one_by_one else 1000)
    with world.jet() as jet:
        jet.run(p, config, until="completed")


def piped(world: World, source: Any, function: Any, **options: Any) -> Pipeline:
    p = Pipeline("changing")
    rows = p.read_from(source, name="rows").transform(function, name="change", **options)
    rows.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    return p


@pytest.mark.parametrize("small", [True, False])
def test_a_function_finds_columns_that_it_did_not_look_at_before(
    world: World, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """The function reads its columns from a file with rules, and asks whether there are rows: one
    more column each."""
    if not small:
        monkeypatch.setattr("dagster_jet.execution.epoch_driver.SPARED_ROWS", -1)
    folder, rule = world.folder / "in", world.folder / "rule"
    for number in range(3):
        values = [10 * number, 10 * number + 1]
        write_input(folder, number, [{name: f"{name}{v}" for name in "abcd"} for v in values])
    rule.write_text("a")

    def by_rule(frame: DataFrame) -> DataFrame:
        wanted = rule.read_text()
        if not frame.isEmpty():
            rule.write_text(chr(ord(wanted) + 1))
        other = "a" if frame.isEmpty() else "d"
        return frame.select(F.col(wanted).alias("x"), F.col(other).alias("y"))

    schema = "a string, b string, c string, d string"
    source = sources.files(str(folder), format="json", schema=schema)
    run(world, piped(world, source, by_rule))
    assert committed(world.folder / "out", ("x", "y")) == Counter(
        (f"{name}{v}", f"d{v}")
        for number, name in enumerate("abc")
        for v in (10 * number, 10 * number + 1)
    )


def averages(frame: DataFrame) -> DataFrame:
    return frame.join(frame.groupBy("k").agg(F.max("v").alias("v")), ["k", "v"]).select(
        "k", "ts", "v"
    )


LATER: dict[str, tuple[Any, type[JetError], str]] = {
    "another type": (
        lambda f: f.withColumn("v", F.col("v").cast("string")),
        UserFunctionError,
        "returned the columns k string, ts bigint, v string.*it returned k string, ts bigint, v b",
    ),
    "another order": (lambda f: f.select("v", "k", "ts"), UserFunctionError, "v bigint, k string"),
    "another column": (lambda f: f.withColumn("w", F.lit(1)), UserFunctionError, "w int"),
    "an aggregate": (
        lambda f: f.groupBy("k", "ts").agg(F.sum("v").alias("v")), PipelineError, "aggregates"
    ),
    "distinct": (lambda f: f.distinct(), PipelineError, "looks for equal rows"),
    "itself": (averages, PipelineError, "aggregates|joins the stream with itself"),
}  # fmt: skip


def later(function: Any) -> Any:
    return lambda frame: frame if frame.isEmpty() else function(frame)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("another type", "files"),
        ("an aggregate", "files"),
        ("itself", "files"),
        ("another type", "items"),
        *(
            pytest.param(name, "files", marks=long)
            for name in ("another order", "another column", "distinct")
        ),
        *(pytest.param(name, "items", marks=long) for name in LATER if name != "another type"),
    ],
)
def test_what_a_later_plan_does_is_looked_at(world: World, name: str, of: str) -> None:
    function, kind, said = LATER[name]
    rows = [{"k": "a", "ts": 1, "v": n % 2} for n in range(4)]
    if of == "files":
        write_input(world.folder / "in", 1, rows)
        source: Any = sources.files(f"{world.folder}/in", format="json", schema=SCHEMA)
    else:
        source = sources.items(rows, schema=SCHEMA)
    with pytest.raises(kind, match=f"job 'changing', stage 'change': .*{said}"):
        run(world, piped(world, source, later(function)))
    assert not committed(world.folder / "out", ("k",))


def test_a_table_of_numbers_is_not_taken_for_the_stream(world: World) -> None:
    """A generated source's rows begin with a range of numbers as well."""

    def with_table(frame: DataFrame) -> DataFrame:
        session = frame.sparkSession
        tables = [session.range(0, count, 1, tasks) for count in (1, 2, 4) for tasks in (1, 2)]
        for table in tables:
            totals = table.groupBy((F.col("id") * 0).alias("v")).agg(F.count("*").alias("n"))
            frame = frame.join(totals.select("v"), "v", "left")
        return frame.select("k", "ts", "v")

    rows = [{"k": "a", "ts": 1, "v": n} for n in range(4)]
    run(world, piped(world, sources.items(rows, schema=SCHEMA), with_table))
    assert committed(world.folder / "out", ("v",)) == Counter((n,) for n in range(4))


@pytest.mark.parametrize(
    ("function", "is_told"),
    [
        (lambda f: f.withColumn("v", F.xxhash64(*f.columns) % 2), True),
        pytest.param(lambda f: f.dropna(), True, marks=long),
        (lambda f: f.where("v > 1").repartition(2).withColumn("v", F.col("v") + 1), False),
        (lambda f: f.where("v > 1").union(f.where("v < 1")), False),
    ],
    ids=["a hash of all columns", "nulls in all columns", "row by row", "both"],
)
def test_a_later_function_that_would_notice_the_partition(
    world: World, function: Any, is_told: bool
) -> None:
    folder = world.folder / "in"
    folder.mkdir()
    (folder / "one.json").write_text('{"k": "a", "ts": 1, "v": 2}\n' * 3, "utf-8")
    p = Pipeline("partitions")
    rows = p.read_from(PartitionedLog(str(folder), {"one": 2}), name="log")
    rows = rows.transform(later(function), name="change").with_timestamps("ts")
    rows.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    if is_told:
        with pytest.raises(UserFunctionError, match=r"stage 'change': .*worked on all columns"):
            run(world, p)
    else:
        run(world, p)
        assert len(list(committed(world.folder / "out", ("k", "v")).elements())) == 3


# --- what a function makes of its own time --------------------------------------------------------


def one_by_one(world: World, files: int = 3, rows: int = 2) -> Any:
    """A source of files, each an epoch of its own."""
    for number in range(files):
        values = range(10 * number, 10 * number + rows)
        write_input(world.folder / "in", number, [{"k": "a", "ts": v, "v": v} for v in values])
    return sources.files(f"{world.folder}/in", format="json", schema=SCHEMA)


def written(world: World, name: str, *columns: str) -> Counter[tuple[Any, ...]]:
    return committed(world.folder / name, columns)


SPANS: dict[str, Any] = {
    "of a function": lambda rows: rows.transform(
        lambda f: f.withColumn("at", F.current_timestamp())
    ),
    "of a column": lambda rows: rows.select("*", "current_timestamp() AS at"),
    "of a text": lambda rows: rows.select("*", "cast('now' AS timestamp) AS at"),
    "of a condition": lambda rows: rows.filter("current_timestamp() > timestamp_millis(ts)").select(
        "*", "now() AS at"
    ),
}  # fmt: skip


@pytest.mark.parametrize("of", long_but_for(SPANS, "of a function", "of a column"))
def test_the_time_is_that_of_the_epoch(world: World, of: str) -> None:
    source, p = one_by_one(world), Pipeline("changing")
    stage = SPANS[of](p.read_from(source, name="rows"))
    stage.select("v", "unix_micros(at) AS at").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    begin = time.time() * 1e6
    run(world, p)
    found = written(world, "out", "v", "at")
    moments = {v // 10: at for v, at in found}
    assert len(found) == 6 and begin < moments[0] < moments[1] < moments[2] < time.time() * 1e6
    assert {(v, moments[v // 10]) for v in (0, 1, 10, 11, 20, 21)} == set(found)


def test_branches_see_one_throw_of_the_dice(world: World) -> None:
    p = Pipeline("changing")
    rows = p.read_from(one_by_one(world, rows=50), name="rows")
    thrown = rows.transform(lambda f: f.withColumn("x", F.rand()), name="change")
    for name, condition in (("low", "x < 0.5"), ("high", "x >= 0.5"), ("all", "true")):
        thrown.filter(condition).write_to(
            sinks.files(f"{world.folder}/{name}", format="json"), name=name
        )
    run(world, p)
    low, high, every = (written(world, name, "v", "x") for name in ("low", "high", "all"))
    assert low + high == every and every.total() == 150
    assert len({x for _, x in every}) == 150, "no epoch throws as another did"


def test_a_table_that_is_broadcast_is_that_of_the_epoch(world: World) -> None:
    table = world.folder / "names.json"
    table.write_text('{"k": "a", "name": "0"}')

    def named(frame: DataFrame) -> DataFrame:
        names = frame.sparkSession.read.schema("k string, name string").json(str(table))
        if not frame.isEmpty():
            number = int(json.loads(table.read_text())["name"])
            names = names.localCheckpoint()
            table.write_text(json.dumps({"k": "a", "name": str(number + 1)}))
        return frame.join(F.broadcast(names), "k")

    run(world, piped(world, one_by_one(world), named))
    expected = Counter({(v, str(v // 10)): 1 for v in (0, 1, 10, 11, 20, 21)})
    assert written(world, "out", "v", "name") == expected


@pytest.mark.parametrize("small", [True, False])
def test_what_a_function_closes_over_is_that_of_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """However large epochs are: frames of small ones are made once."""
    if not small:
        monkeypatch.setattr("dagster_jet.execution.epoch_driver.SPARED_ROWS", -1)
    factor = {"is": 1}

    def times(state: State[int], row: dict[str, Any]) -> dict[str, Any]:
        return {"k": row["k"], "v": row["v"] * factor["is"]}

    def listen(event: JobEvent) -> None:
        factor["is"] += isinstance(event, EpochCompleted)

    p = Pipeline("changing")
    rows = p.read_from(one_by_one(world), name="rows").group_by("k")
    mapped = rows.map_stateful(times, create=int, output_schema="k string, v long", name="mapped")
    mapped.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    config = JobConfig(restart_attempts_max=0, max_items_per_epoch=1)
    with world.jet() as jet:
        jet.run(p, config, until="completed", on_event=listen)
    assert factor["is"] > 3
    assert written(world, "out", "v") == Counter((v,) for v in (0, 1, 10, 11, 20, 21))


def test_a_function_that_cannot_be_sent_is_refused_at_the_start(world: World) -> None:
    lock = threading.Lock()

    def locked(state: State[int], row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    p = Pipeline("changing")
    rows = p.read_from(one_by_one(world), name="rows").group_by("k")
    mapped = rows.map_stateful(locked, create=int, output_schema=SCHEMA, name="mapped")
    mapped.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with pytest.raises(PipelineError, match="stage 'mapped': the stage cannot be sent to tasks"):
        run(world, p)


NULLS: dict[str, tuple[str, Any, Any]] = {
    "of a column": ("{}", 1, None),
    "of a struct": ("struct({} AS x)", {"x": 1}, {"x": None}),
    "of a list": ("array({})", [1], [None]),
}


@pytest.mark.parametrize("format", ["parquet", pytest.param("json", marks=long)])
@pytest.mark.parametrize("of", long_but_for(NULLS, "of a struct"))
def test_nulls_where_there_were_none_on_no_rows(world: World, of: str, format: Any) -> None:
    made, one, null = NULLS[of]

    def change(frame: DataFrame) -> DataFrame:
        value = "1" if frame.isEmpty() else "if(v % 10 = 0, null, 1)"
        return frame.withColumn("n", F.expr(made.format(value)))

    p = Pipeline("changing")
    rows = p.read_from(one_by_one(world), name="rows").transform(change, name="change")
    rows = rows.with_timestamps("ts", allowed_lag="1 hour")
    stages = {"plain": rows, "first": rows.deduplicate(on="v", within="1 second", name="first")}
    for name, stage in stages.items():
        sink = sinks.files(f"{world.folder}/{name}", format=format)
        stage.select("v", "n").write_to(sink, name=f"{name}_out")
    run(world, p)
    for name in stages:
        files = world.spark.read.format(format).load(f"{world.folder}/{name}/part-*")
        found = {row.v: json.loads(row.j)["n"] for row in
                 files.select("v", F.to_json(F.struct("n"), {"ignoreNullFields": "false"})
                              .alias("j")).collect()}  # fmt: skip
        assert found == {v: null if v % 10 == 0 else one for v in (0, 1, 10, 11, 20, 21)}, name


# --- killed while the function changes ------------------------------------------------------------

WAYS: list[Any] = [
    lambda f: f,
    lambda f: f.where("v >= 50"),
    lambda f: f.select("k", "ts", (F.col("v") + 1).alias("v")).withColumn("v", F.col("v") - 1),
    lambda f: f.where("v < 70").union(f.where("v >= 70")),
    lambda f: f.withColumn("w", F.hash("k")).drop("w"),
]
"""Functions with the same rows from other columns."""


def changing_pipeline(folder: Path) -> Pipeline:
    turn = folder / "turn"

    def change(frame: DataFrame) -> DataFrame:
        number = int(turn.read_text()) if turn.exists() else 0
        turn.write_text(str(number + 1))
        return WAYS[number % len(WAYS)](frame)

    return child.crash_pipeline(folder, changed=lambda rows: rows.transform(change, name="change"))


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, changing_pipeline)


class ChangingWorld(World):
    driver = staticmethod(main)


@long  # the tests above change functions, those of test_killed.py kill
@pytest.mark.parametrize(
    ("rules", "sharded"),
    [
        ("record.snapshot.after:3=kill", True),
        ("files.commit.file:3=kill", False),
    ],
)
def test_killed_while_the_function_changes(world: World, rules: str, sharded: bool) -> None:
    world = ChangingWorld(world.folder, world.fail_points, world.spark).fill()
    world.run_child(rules, sharded=sharded)
    world.assert_nothing_doubled()
    with world.jet() as jet:
        jet.run(changing_pipeline(world.folder), JobConfig(**child.CONFIG), until="completed")
    world.assert_exactly_once()
    assert int((world.folder / "turn").read_text()) > len(WAYS)


class Drifting(Source):
    """A source of one's own whose second split has other columns than it says."""

    def __init__(self, drifts: Any) -> None:
        self.drifts = drifts

    def describe(self) -> dict[str, str]:
        return {"kind": "drifting"}

    def row_schema(self) -> str:
        return "k string, ts long, v long"

    def open(self, job: str, stage: str, bad_rows: Any) -> Any:
        return DriftingReader(self.drifts)


class DriftingReader(SourceReader):
    def __init__(self, drifts: Any) -> None:
        self.drifts, self.planned = drifts, 0

    def restore(self, position: Any, journal: Any) -> None:
        self.planned = position["planned"]

    def poll(self) -> Any:
        return None

    def accept(self, found: Any) -> None:
        pass

    def waiting(self) -> Lag:
        return Lag(2 - self.planned, {})

    def plan(self, max_rows: int) -> Any:
        if self.planned == 2:
            return None
        self.planned += 1
        return self.planned

    def frame(self, spark: Any, split: int) -> SourceFrame:
        rows = spark.range(1).select(
            F.lit("a").alias("k"), F.lit(split).cast("long").alias("ts"), F.col("id").alias("v")
        )
        return SourceFrame(rows if split == 1 else self.drifts(rows))

    def position(self) -> dict[str, Any]:
        return {"planned": self.planned}


@pytest.mark.parametrize(
    "drifts",
    [
        lambda f: f.select("k", "v", "ts"),
        lambda f: f.withColumn("v", F.col("v").cast("int")),
        lambda f: f.drop("v"),
    ],
    ids=["order", "type", "fewer"],
)
def test_a_source_keeps_to_its_columns(world: World, drifts: Any) -> None:
    """Failed before: stages are made for the columns that it says, and took the others by place."""
    p = Pipeline("drifting")
    rows = p.read_from(Drifting(drifts), name="rows")
    rows.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with pytest.raises(SourceError, match="its schema says k string, ts bigint, v bigint"):
        run(world, p)
    assert committed(world.folder / "out", ("k", "ts", "v")) <= Counter([("a", 1, 0)])


def test_tasks_do_not_run_where_other_versions_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor joins after the start has asked all executors: with everything on one host
    nobody is asked. Failed before."""
    monkeypatch.setattr("dagster_jet.__version__", "0.0.0")
    p = Pipeline("versions")
    rows = p.read_from(sources.items([{"v": 1}], schema="v long"), name="rows")
    rows.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    with pytest.raises(MissingEnvironmentError, match=r"the driver has dagster_jet 0\.0\.0"):
        run(world, p)
    assert not committed(world.folder / "out", ("v",))
