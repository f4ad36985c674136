"""Aggregating stages: the JVM sends mergeable partials per key and frame, never rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from dagster_jet.engine.spark.stages.plan import (
    Partitions,
    StagePlan,
    arrow_schema,
    event_time_ms,
    quoted,
    spark_schema,
    time_sql,
)
from dagster_jet.pipeline.stateful import AggregateNode, RollingNode
from dagster_jet.pipeline.windows import SessionWindow
from dagster_jet.processors.aggregation import Aggregation
from dagster_jet.processors.operator import HASH_COLUMN, TIME_COLUMN
from dagster_jet.processors.rolling import RollingAggregate
from dagster_jet.processors.session import FIRST_TIME_COLUMN, SessionWindows
from dagster_jet.processors.window import WINDOW_END_MS, SlidingWindows

_BUCKET = "__bucket"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from dagster_jet.engine.spark.stages.plan import Shape


def plan_windows(node: AggregateNode, source: DataFrame, partitions: Partitions) -> StagePlan:
    """Tumbling and sliding windows: partials per (key, frame)."""
    assert not isinstance(node.window, SessionWindow)
    frames, aggregation = node.window.frames, Aggregation(node.aggregates)
    time = event_time_ms(source, node.time_column)
    behind = F.pmod(time - F.lit(frames.offset_ms), F.lit(frames.slide_ms))
    end = (time - behind + F.lit(frames.slide_ms)).cast("long")
    groups = [partitions.of(node.keys), *quoted(node.keys), end.alias(WINDOW_END_MS)]
    shape = _grouped(groups, _partials(aggregation, source, node.time_column))
    operator = SlidingWindows(
        input_schema=_input_schema(shape, source),
        keys=node.keys,
        frames=frames,
        aggregation=aggregation,
        early_results=node.early_results_ms is not None,
    )
    return StagePlan(
        operator=operator,
        shapes=(shape,),
        late=lambda before_ms: end <= F.lit(frames.floor(before_ms)),
        filters_late=False,
        result_type=spark_schema(operator.result_schema),
    )


def plan_sessions(node: AggregateNode, source: DataFrame, partitions: Partitions) -> StagePlan:
    """Session windows: partials per (key, stretch of one gap), whose events are one session."""
    assert isinstance(node.window, SessionWindow)
    gap_ms, aggregation = node.window.gap_ms, Aggregation(node.aggregates)
    time = event_time_ms(source, node.time_column)
    bucket = F.floor(time / F.lit(gap_ms))
    groups = [*_address(node.keys, partitions), bucket.alias(_BUCKET)]
    partials = [F.min(time).alias(FIRST_TIME_COLUMN), F.max(time).alias(TIME_COLUMN)]
    partials += _partials(aggregation, source, node.time_column)
    grouped = _grouped(groups, partials)

    def shape(frame: DataFrame) -> DataFrame:
        return grouped(frame).drop(_BUCKET)

    operator = SessionWindows(
        input_schema=_input_schema(shape, source),
        keys=node.keys,
        gap_ms=gap_ms,
        aggregation=aggregation,
        early_results=node.early_results_ms is not None,
    )
    return StagePlan(
        operator=operator,
        shapes=(shape,),
        late=lambda before_ms: time < F.lit(before_ms),
        filters_late=True,
        result_type=spark_schema(operator.result_schema),
    )


def plan_rolling(node: RollingNode, source: DataFrame, partitions: Partitions) -> StagePlan:
    """Totals over all time: partials per key."""
    aggregation = Aggregation(node.aggregates)
    time = F.lit(0).cast("long")
    if node.time_column is not None:
        time = F.max(event_time_ms(source, node.time_column))
    partials = [time.alias(TIME_COLUMN), *_partials(aggregation, source, node.time_column)]
    shape = _grouped(_address(node.keys, partitions), partials)
    operator = RollingAggregate(
        input_schema=_input_schema(shape, source),
        keys=node.keys,
        aggregation=aggregation,
        result_time=node.time_column,
    )
    return StagePlan(
        operator=operator,
        shapes=(shape,),
        late=None,
        filters_late=False,
        result_type=spark_schema(operator.result_schema),
    )


def _address(keys: Sequence[str], partitions: Partitions) -> list[Column]:
    key_hash = partitions.hash(keys).alias(HASH_COLUMN)
    return [partitions.of(keys), key_hash, *quoted(keys)]


def _partials(aggregation: Aggregation, source: DataFrame, time_column: str | None) -> list[Column]:
    time = "0L" if time_column is None else time_sql(source, time_column)
    return [F.expr(sql).alias(name) for name, sql in aggregation.spark_columns(time)]


def _grouped(groups: list[Column], partials: list[Column]) -> Shape:
    return lambda frame: frame.groupBy(*groups).agg(*partials)


def _input_schema(shape: Shape, source: DataFrame) -> pa.Schema:
    return arrow_schema(shape(source).schema)
