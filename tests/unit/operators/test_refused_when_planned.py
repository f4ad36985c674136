"""Pipelines that would fail with the first row, or the second epoch, are refused by their
schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_jet.core.window_frames import Frames
from dagster_jet.dag import Processor
from dagster_jet.errors import PipelineError
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.first_stage import FramePartials, KeyPartials, SessionBuckets
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.rolling import RollingAggregate
from dagster_jet.operators.session import SessionWindows
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.operators.window import SlidingWindows
from dagster_jet.pipeline import aggregates as agg

OUT = pa.schema([("n", pa.int64())])
COUNT = Aggregation((("n", agg.count()),))
FRAMES = Frames(10, 10)
KEYS = ("k",)


def deduplicate(row):
    return Deduplicate(KEYS, row, 5)


def stateful_map(row):
    return StatefulMap("m", KEYS, row, OUT, max, int)


def in_batches(row):
    return StatefulMapInBatches("m", KEYS, row, OUT, pa.schema([("kept", pa.int64())]), max)


def join(row):
    others = pa.schema([field for field in row if field.name != "k"])
    return IntervalJoin(pa.schema([row.field("k")]), others, OUT, (-5, 5), "left")


def arriving(first_stage, row):
    """The input schema of an aggregating operator."""
    types = {"__partition": pa.int32(), **{field.name: field.type for field in row}}
    names = first_stage.input_columns
    return pa.schema([(name, types.get(name, pa.int64())) for name in names])


def windows(row, aggregation=COUNT):
    stage = FramePartials(KEYS, aggregation, FRAMES)
    return SlidingWindows(arriving(stage, row), KEYS, FRAMES, aggregation)


def sessions(row, aggregation=COUNT):
    stage = SessionBuckets(KEYS, aggregation, 5)
    return SessionWindows(arriving(stage, row), KEYS, 5, aggregation)


def rolling(row, aggregation=COUNT):
    stage = KeyPartials(KEYS, aggregation)
    return RollingAggregate(arriving(stage, row), KEYS, aggregation)


AGGREGATING = (windows, sessions, rolling)
ROWS = (deduplicate, stateful_map, in_batches, join)
NESTED = [
    pa.struct([("a", pa.int64())]),
    pa.list_(pa.int64()),
    pa.map_(pa.string(), pa.int64()),
]


@pytest.mark.parametrize("kind", NESTED, ids=str)
@pytest.mark.parametrize("operator", [*AGGREGATING, *ROWS])
def test_nested_keys(operator, kind):
    operator(pa.schema([("k", pa.string()), ("v", kind)]))
    with pytest.raises(PipelineError, match=r"'k' is \w+<.* cannot be a key.*to_json"):
        operator(pa.schema([("k", kind)]))


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.duration("us")], ids=str)
def test_keys_whose_hash_python_and_spark_do_not_share(kind):
    def processor(keys):
        row = pa.schema([("k", kind), ("v", pa.float32())])
        SparkProcessor("p", Processor, row, OUT, keys, in_batches=False, partition_count=7)

    processor(())
    processor(("v",))
    with pytest.raises(
        PipelineError, match=r"'k' is .*Python and Spark have no common hash.*cast\(k"
    ):
        processor(("v", "k"))


@pytest.mark.parametrize("name", ["__partition", "__hash", "__time"])
@pytest.mark.parametrize("operator", ROWS)
def test_columns_with_names_that_the_engine_uses(operator, name):
    with pytest.raises(PipelineError, match=rf"^{name} cannot be a column.*Rename"):
        operator(pa.schema([("k", pa.string()), (name, pa.int64())]))


@pytest.mark.parametrize("kind", [*NESTED, pa.duration("us")], ids=str)
@pytest.mark.parametrize("aggregate", [agg.min("v"), agg.max("v"), agg.sum("v"), agg.mean("v")])
@pytest.mark.parametrize("operator", AGGREGATING)
def test_values_that_arrow_cannot_merge(operator, aggregate, kind):
    aggregation = Aggregation((("r", aggregate),))
    (name, _), *_ = aggregation.partials
    with pytest.raises(PipelineError, match=r"\('v'\): partial results .*Take one of its fields"):
        operator(pa.schema([("k", pa.string()), (name, kind)]), aggregation)


@pytest.mark.parametrize(
    "aggregate", [agg.count_distinct("v"), agg.collect_set("v"), agg.mode("v")]
)
@pytest.mark.parametrize("operator", AGGREGATING)
def test_distinct_values_of_a_column_without_a_type(operator, aggregate):
    """Failed before: an error of Arrow at the first row."""
    aggregation = Aggregation((("r", aggregate),))
    (name, _), *_ = aggregation.partials
    value = pa.struct([("value", pa.null()), ("count", pa.int64())])
    kind = pa.list_(value if "counts" in name else pa.null())
    with pytest.raises(PipelineError, match=r"'v': the column has no type \(void\).*cast\(v AS"):
        operator(pa.schema([("k", pa.string()), (name, kind)]), aggregation)
