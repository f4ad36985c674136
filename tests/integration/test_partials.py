"""Partials that the JVM computes, in the operators: the SQL of every aggregate, for every stage."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_jet.core.frames import Frames
from dagster_jet.processors.aggregation import Aggregation
from dagster_jet.processors.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    MemoryState,
    Operator,
    StepInput,
)
from dagster_jet.processors.rolling import RollingAggregate
from dagster_jet.processors.session import FIRST_TIME_COLUMN, SessionWindows
from dagster_jet.processors.window import WINDOW_END_MS, SlidingWindows
from tests.unit.processors.naive import AGGREGATES, comparable, definitions, expected
from tests.unit.processors.session_stage import expected_sessions
from tests.unit.processors.stage import FINAL, event_table, ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

AGGREGATION = Aggregation(tuple(definitions().items()))
SIZE, GAP, HALVES = 40, 3, 2
HASH = f"xxhash64(k) AS {HASH_COLUMN}"
PARTITION = f"cast(pmod(xxhash64(k), 271) AS int) AS {PARTITION_COLUMN}"


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
    names = ["k", "t", "v", "x", "s"]
    # Pickled by rows: createDataFrame from Arrow would be read with pandas.
    schema = "k string, t bigint, v bigint, x double, s string"
    return [
        spark.createDataFrame([tuple(row[n] for n in names) for row in table.to_pylist()], schema)
        for table in tables
    ]


def grouped(frame: DataFrame, groups: Iterable[str], times: Iterable[str] = ()) -> pa.Table:
    """`groupBy(...).agg(...)` as Arrow."""
    from pyspark.sql import functions as F

    def columns(texts: Iterable[str]) -> list[Column]:
        return [F.expr(text) for text in texts]

    partials = [F.expr(sql).alias(name) for name, sql in AGGREGATION.spark_columns("t")]
    return frame.groupBy(*columns(groups)).agg(*columns(times), *partials).toArrow()


def run(operator: Operator, arrived: list[pa.Table]) -> list[dict[str, Any]]:
    """Steps through the epochs, ends the input, and returns the last step's results."""
    state = MemoryState(operator)
    for version, table in enumerate([*arrived, arrived[0].slice(0, 0)]):
        after = FINAL if version == len(arrived) else None
        step = operator.step(StepInput((table,), None, after, version), state)
        state.append(step.delta, after)
    return step.results.to_pylist()


def test_partials_without_a_jvm_have_the_types_that_spark_gives_them(frames):
    from_spark = grouped(frames[0], [PARTITION, "k"]).schema
    table = event_table([])
    here = AGGREGATION.first_stage(table, table.column("t"), [PARTITION_COLUMN, "k"]).schema
    assert {f.name: f.type for f in here} == {f.name: f.type for f in from_spark}


def test_windows(frames, events):
    cut = f"t - pmod(t - 0L, {SIZE}L) + {SIZE}L AS {WINDOW_END_MS}"
    arrived = [grouped(frame, [PARTITION, "k", cut]) for frame in frames]
    size = Frames(SIZE, SIZE)
    rows = run(SlidingWindows(arrived[0].schema, ("k",), size, AGGREGATION), arrived)
    assert len(rows) == 9
    for row in rows:
        end = ms(row["window_end"])
        mine = [e for e in events if e[0] == row["k"] and end - SIZE <= e[1] < end]
        assert comparable({n: row[n] for n in AGGREGATES}) == comparable(expected(mine))


def test_sessions(frames, events):
    bucket, span = f"floor(t / {GAP}L) AS __bucket", (
        f"min(t) AS {FIRST_TIME_COLUMN}",
        f"max(t) AS {TIME_COLUMN}",
    )  # fmt: skip
    arrived = [
        grouped(frame, [PARTITION, HASH, "k", bucket], span).drop_columns(["__bucket"])
        for frame in frames
    ]
    rows = run(SessionWindows(arrived[0].schema, ("k",), GAP, AGGREGATION), arrived)
    (sessions,), _ = expected_sessions([(events, FINAL)], GAP)
    assert len(rows) == len(sessions)
    for row in rows:
        mine = sessions[row["k"], ms(row["window_start"]), ms(row["window_end"])]
        assert comparable({n: row[n] for n in AGGREGATES}) == comparable(expected(mine))


def test_rolling_aggregates(frames, events):
    arrived = [
        grouped(frame, [PARTITION, HASH, "k"], [f"max(t) AS {TIME_COLUMN}"]) for frame in frames
    ]
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
