"""Partials that the JVM computes, in the operators: the SQL of every aggregate, for every stage."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import functions as F

from dagster_jet.core.window_frames import Frames
from dagster_jet.errors import BadRowError, PipelineError
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.first_stage import (
    FirstStage,
    FramePartials,
    KeyPartials,
    SessionBuckets,
    SqlColumns,
)
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    MemoryState,
    Operator,
    StepInput,
)
from dagster_jet.operators.rolling import RollingAggregate
from dagster_jet.operators.session import SessionWindows
from dagster_jet.operators.window import SlidingWindows
from dagster_jet.pipeline import aggregates as agg
from dagster_jet.spark.planning.aggregation import with_expressions
from tests.unit.operators.naive import AGGREGATES, comparable, definitions, expected
from tests.unit.operators.session_stage import expected_sessions
from tests.unit.operators.stage import DERIVED, FINAL, as_float, event_table, ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

AGGREGATION = Aggregation(tuple(definitions().items()))
SIZE, GAP, HALVES = 40, 3, 2
ADDRESS = {HASH_COLUMN: "xxhash64(k)", PARTITION_COLUMN: "cast(pmod(xxhash64(k), 271) AS int)"}


@pytest.fixture(scope="module")
def events() -> list[tuple[str | None, int, int | None]]:
    rng = random.Random(5)
    values = [None, *range(-9, 30)]
    return [
        (rng.choice(["a", "b", None]), rng.randrange(100), rng.choice(values)) for _ in range(120)
    ]


@pytest.fixture(scope="module")
def frames(spark: SparkSession, events: list[Any]) -> list[DataFrame]:
    """The events as two epochs."""
    tables = [event_table(events[half::HALVES]) for half in range(HALVES)]
    names = ["k", "t", "v", *DERIVED.names]
    # Pickled by rows: createDataFrame from Arrow would be read with pandas.
    schema = "k string, t bigint, v bigint, x double, s string, d decimal(30,2), b boolean"
    schema += ", r struct<v: bigint, x: double>, l array<double>"
    return [
        spark.createDataFrame([tuple(row[n] for n in names) for row in table.to_pylist()], schema)
        for table in tables
    ]


def first_stage(
    stage: FirstStage, frame: DataFrame, time: str = "t", moment: str = "t"
) -> pa.Table:
    """Input of the operator, as Spark computes it from a frame."""

    def columns(columns: SqlColumns) -> list[Column]:
        return [F.expr(sql).alias(name) for name, sql in columns]

    groups = [F.expr(ADDRESS[name]).alias(name) for name in stage.address]
    groups += [F.col(key) for key in stage.keys] + columns(stage.group_columns(time))
    partials = frame.groupBy(*groups).agg(*columns(stage.aggregate_columns(time, moment)))
    return partials.toArrow().select(list(stage.input_columns))


def run(operator: Operator, arrived: list[pa.Table]) -> list[dict[str, Any]]:
    """Steps through the epochs, ends the input, and returns the last step's results."""
    state = MemoryState(operator)
    for version, table in enumerate([*arrived, arrived[0].slice(0, 0)]):
        after = FINAL if version == len(arrived) else None
        step = operator.step(StepInput((table,), None, after, version), state)
        state.append(step.delta, after)
    return step.results.to_pylist()


@pytest.mark.parametrize(
    "stage",
    [
        FramePartials(("k",), AGGREGATION, Frames(SIZE, SIZE // 2, 7)),
        SessionBuckets(("k",), AGGREGATION, GAP),
        SessionBuckets(("k",), AGGREGATION, 1),
        KeyPartials(("k",), AGGREGATION),
    ],
)
@pytest.mark.parametrize("moment", ["t", "at"])
def test_partials_without_a_jvm_are_those_of_the_jvm(stage, frames, events, moment):
    """By times in ms, or by timestamps, of which several are in each millisecond."""
    frame = frames[0].withColumn("at", F.expr("timestamp_micros(t * 200)"))
    rows = event_table(events[::HALVES])
    rows = rows.append_column("at", pc.multiply(rows["t"], 200).cast(pa.timestamp("us", "UTC")))
    if moment == "at":
        place = rows.schema.get_field_index(TIME_COLUMN)
        rows = rows.set_column(place, TIME_COLUMN, pc.divide(rows["t"], 5))
    from_spark = first_stage(stage, frame, "unix_millis(at)" if moment == "at" else "t", moment)
    here, _ = stage.partials(rows, None, moment)
    assert {f.name: f.type for f in here.schema} == {f.name: f.type for f in from_spark.schema}
    # Sketches, sets, lists and rounded numbers of equal content need not be equal.
    kinds = {f.name: f.type for f in here.schema}
    plain = [
        name
        for name, kind in kinds.items()
        if not (pa.types.is_list(kind) or pa.types.is_binary(kind) or name.startswith("__moments"))
    ]
    tables = [table.select(plain).to_pylist() for table in (here, from_spark)]
    rows, rows_of_spark = ([repr(row) for row in table] for table in tables)
    assert sorted(rows) == sorted(rows_of_spark)
    listed = Aggregation((("list", agg.collect_list("v")),))
    lists = [
        sorted(map(repr, zip(table["k"].to_pylist(), *listed.finish(table), strict=True)))
        for table in (here, from_spark)
    ]
    assert lists[0] == lists[1]


def test_windows(frames, events):
    size = Frames(SIZE, SIZE)
    arrived = [first_stage(FramePartials(("k",), AGGREGATION, size), frame) for frame in frames]
    rows = run(SlidingWindows(arrived[0].schema, ("k",), size, AGGREGATION), arrived)
    assert len(rows) == 9
    for row in rows:
        end = ms(row["window_end"])
        mine = [e for e in events if e[0] == row["k"] and end - SIZE <= e[1] < end]
        assert comparable({n: row[n] for n in AGGREGATES}) == comparable(expected(mine))


def test_sessions(frames, events):
    arrived = [first_stage(SessionBuckets(("k",), AGGREGATION, GAP), frame) for frame in frames]
    rows = run(SessionWindows(arrived[0].schema, ("k",), GAP, AGGREGATION), arrived)
    (sessions,), _ = expected_sessions([(events, FINAL)], GAP)
    assert len(rows) == len(sessions)
    for row in rows:
        mine = sessions[row["k"], ms(row["window_start"]), ms(row["window_end"])]
        assert comparable({n: row[n] for n in AGGREGATES}) == comparable(expected(mine))


def test_rolling_aggregates(frames, events):
    arrived = [first_stage(KeyPartials(("k",), AGGREGATION), frame) for frame in frames]
    operator = RollingAggregate(arrived[0].schema, ("k",), AGGREGATION, "at")
    state = MemoryState(operator)
    for version, table in enumerate(arrived):
        step = operator.step(StepInput((table,), None, None, version), state)
        state.append(step.delta, None)
    rows = step.results.to_pylist()
    assert len(rows) == 3
    for row in rows:
        mine = [e for e in events if e[0] == row["k"]]
        assert ms(row["at"]) == max(t for _, t, _ in mine)
        assert comparable({n: row[n] for n in AGGREGATES}) == comparable(expected(mine))


def one_key(aggregates: dict[str, Any], frame: DataFrame) -> dict[str, Any]:
    """The totals of one epoch, as Spark sends them and the operator finishes them."""
    aggregation = Aggregation(tuple(aggregates.items()))
    arrived = first_stage(KeyPartials(("k",), aggregation), frame)
    operator = RollingAggregate(arrived.schema, ("k",), aggregation)
    step = operator.step(StepInput((arrived,), None, None, 1), MemoryState(operator))
    (row,) = step.results.to_pylist()
    return row


def test_both_zeros_in_one_epoch_are_one_value(spark):
    frame = spark.createDataFrame([("a", 1, 0.0), ("a", 2, -0.0)], "k string, t bigint, x double")
    assert one_key({"d": agg.count_distinct("x")}, frame) == {"k": "a", "d": 1}


def test_a_row_without_event_time_is_refused_beside_others_of_its_key(spark):
    frame = spark.createDataFrame([("a", None, 1.0), ("a", 2, 2.0)], "k string, t bigint, x double")
    with pytest.raises(BadRowError, match="no event time"):
        one_key({"n": agg.count()}, frame)


@pytest.mark.parametrize("column", ["it's", "a\\b", "\\'"])
def test_a_users_aggregate_over_a_column_of_any_name(spark, column):
    seen = agg.custom(
        list, lambda rows, row: [*rows, row], list.__add__, str, columns=[column],
        result_type="string",
    )  # fmt: skip
    frame = spark.createDataFrame([("a", 1, 7)], ["k", "t", column])
    assert one_key({"seen": seen}, frame)["seen"] == str([{column: 7}])


def test_spark_refuses_a_sum_that_merging_would_refuse(spark):
    frame = spark.createDataFrame([("a", t, 2**62) for t in (1, 2)], "k string, t bigint, v bigint")
    with pytest.raises(ArithmeticException, match="overflow"):
        one_key({"total": agg.sum("v")}, frame)
    assert one_key({"mean": agg.mean("v")}, frame.limit(1))["mean"] == 2.0**62


def test_expressions_and_conditions(spark, frames, events):
    """Columns of the rows, and columns whose names look like expressions."""
    aggregates = {
        "n": agg.count_if("v > 3 and x < 9"),
        "some": agg.count(where="v is null"),
        "total": agg.sum("case when v > 3 then v * 2 else 0 end"),
        "high": agg.max("v", where="s like '1%'"),
        "row": agg.last("struct(v, t)"),
        "best": agg.max_by("struct(t, s)", "v + 0 * t", where="b"),
        "odd": agg.sum("a-b"),
    }
    aggregation = Aggregation(tuple(aggregates.items()))
    stage = KeyPartials(("k",), aggregation)
    odd = [frame.withColumn("a-b", F.lit(1)) for frame in frames]
    computed = with_expressions(aggregation, odd[0])
    arrived = [first_stage(stage, computed(frame)) for frame in odd]
    operator = RollingAggregate(arrived[0].schema, ("k",), aggregation)
    state = MemoryState(operator)
    for version, table in enumerate(arrived):
        step = operator.step(StepInput((table,), None, None, version), state)
        state.append(step.delta, None)
    for row in step.results.to_pylist():
        mine = [(t, v) for k, t, v in events if k == row["k"]]
        known = [(t, v) for t, v in mine if v is not None]
        last = max(mine, key=lambda e: (e[0], e[1] is not None, e[1] or 0))
        best = max(((v, t) for t, v in known if v > 3), default=None)
        assert row == {
            "k": row["k"],
            "n": sum(v > 3 and as_float(v) < 9 for _, v in known),
            "some": len(mine) - len(known),
            "total": sum(2 * v if v > 3 else 0 for _, v in known),
            "high": max((v for _, v in known if str(v).startswith("1")), default=None),
            "row": {"v": last[1], "t": last[0]},
            "best": best and {"t": best[1], "s": str(best[0])},
            "odd": len(mine),
        }
    with pytest.raises(PipelineError, match="by epoch and task"):
        wrong = agg.sum("monotonically_increasing_id() + 1")
        with_expressions(Aggregation((("x", wrong),)), odd[0])
