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
from dagster_jet.pipeline.stateful import AggregateNode
from dagster_jet.pipeline.windows import SessionWindow
from dagster_jet.processors.aggregation import Aggregation
from dagster_jet.processors.window import WINDOW_END_MS, SlidingWindows

if TYPE_CHECKING:
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


def _partials(
    aggregation: Aggregation, source: DataFrame, time_column: str | None
) -> list[Column]:
    time = "0L" if time_column is None else time_sql(source, time_column)
    return [F.expr(sql).alias(name) for name, sql in aggregation.spark_columns(time)]


def _grouped(groups: list[Column], partials: list[Column]) -> Shape:
    return lambda frame: frame.groupBy(*groups).agg(*partials)


def _input_schema(shape: Shape, source: DataFrame) -> pa.Schema:
    return arrow_schema(shape(source).schema)
