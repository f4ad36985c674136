"""Aggregating stages: the JVM sends mergeable partials per key and frame, never rows.

What it computes is said by the operator's first stage (`processors/first_stage.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.engine.spark.arrivals import APPENDED, TIMED_COLUMN, TOP_COLUMN
from dagster_jet.engine.spark.stages.plan import (
    Partitions,
    Shape,
    StagePlan,
    arrow_schema,
    behind_watermark,
    column_sql,
    quoted,
    spark_schema,
    time_sql,
)
from dagster_jet.pipeline.stateful import AggregateNode, RollingNode
from dagster_jet.pipeline.windows import SessionWindow
from dagster_jet.processors.aggregation import Aggregation
from dagster_jet.processors.first_stage import (
    FirstStage,
    FramePartials,
    KeyPartials,
    SessionBuckets,
)
from dagster_jet.processors.operator import HASH_COLUMN, PARTITION_COLUMN
from dagster_jet.processors.rolling import RollingAggregate
from dagster_jet.processors.session import SessionWindows
from dagster_jet.processors.window import SlidingWindows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from dagster_jet.engine.spark.stages.plan import Late
    from dagster_jet.processors.operator import Operator


def plan_windows(
    node: AggregateNode, source: DataFrame, partitions: Partitions, tells_arrivals: bool
) -> StagePlan:
    """Tumbling and sliding windows: partials per (key, frame)."""
    assert not isinstance(node.window, SessionWindow)
    frames, aggregation = node.window.frames, Aggregation(node.aggregates)
    stage = FramePartials(node.keys, aggregation, frames)
    time = time_sql(source, node.time)
    shape = _shape(stage, source, time, partitions)
    operator = SlidingWindows(
        input_schema=arrow_schema(shape(source).schema),
        keys=node.keys,
        frames=frames,
        aggregation=aggregation,
        early_results=node.early_results_ms is not None,
    )
    ((_, end_sql),) = stage.group_columns(time)
    end = F.expr(end_sql)
    if tells_arrivals:
        shape = _shape(stage, source, time, partitions, _arrivals(time))
    return _plan(
        operator,
        stage,
        shape,
        lambda before_ms: end <= F.lit(frames.floor(before_ms)),
        APPENDED if tells_arrivals else (),
    )


def plan_sessions(node: AggregateNode, source: DataFrame, partitions: Partitions) -> StagePlan:
    """Session windows: partials per (key, stretch of one gap), whose events are one session."""
    assert isinstance(node.window, SessionWindow)
    aggregation = Aggregation(node.aggregates)
    stage = SessionBuckets(node.keys, aggregation, node.window.gap_ms)
    time = time_sql(source, node.time)
    shape = _shape(stage, source, time, partitions)
    operator = SessionWindows(
        input_schema=arrow_schema(shape(source).schema),
        keys=node.keys,
        gap_ms=node.window.gap_ms,
        aggregation=aggregation,
        early_results=node.early_results_ms is not None,
    )
    return _plan(operator, stage, shape, behind_watermark(source, node.time))


def plan_rolling(
    node: RollingNode, source: DataFrame, partitions: Partitions, tells_arrivals: bool
) -> StagePlan:
    """Totals over all time: partials per key."""
    aggregation = Aggregation(node.aggregates)
    stage = KeyPartials(node.keys, aggregation)
    # As the column says it, also behind windows: nothing is late here, and it comes out again.
    time = "0L" if node.time is None else column_sql(source, node.time.column)
    shape = _shape(stage, source, time, partitions)
    operator = RollingAggregate(
        input_schema=arrow_schema(shape(source).schema),
        keys=node.keys,
        aggregation=aggregation,
        result_time=None if node.time is None else node.time.column,
    )
    if tells_arrivals:
        shape = _shape(stage, source, time, partitions, _arrivals(time))
    return _plan(operator, stage, shape, None, APPENDED if tells_arrivals else ())


def _plan(
    operator: Operator,
    stage: FirstStage,
    shape: Shape,
    late: Late | None,
    appended: tuple[pa.Field, ...] = (),
) -> StagePlan:
    return StagePlan(
        operator=operator,
        shapes=(shape,),
        late=() if late is None else (late,),
        filters_late=stage.late_rows_are_left_out,
        result_type=spark_schema(operator.result_schema),
        appended=appended,
    )


def _arrivals(time: str) -> list[Column]:
    """`APPENDED`."""
    moment = F.expr(time)
    return [F.count(moment).alias(TIMED_COLUMN), F.max(moment).alias(TOP_COLUMN)]


def _shape(
    stage: FirstStage,
    source: DataFrame,
    time: str,
    partitions: Partitions,
    appended: Sequence[Column] = (),
) -> Shape:
    address = {
        PARTITION_COLUMN: partitions.of(stage.keys),
        HASH_COLUMN: partitions.hash(stage.keys).alias(HASH_COLUMN),
    }
    groups = [
        *(address[name] for name in stage.address),
        *quoted(stage.keys),
        *(F.expr(sql).alias(name) for name, sql in stage.group_columns(time)),
    ]
    partials = [F.expr(sql).alias(name) for name, sql in stage.aggregate_columns(time)]
    columns = quoted([*stage.input_columns, *(f.name for f in APPENDED if appended)])
    return lambda frame: frame.groupBy(*groups).agg(*partials, *appended).select(*columns)
