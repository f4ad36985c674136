"""Aggregating stages: the JVM sends mergeable partials per key and frame, never rows.

The operator's first stage (`operators/first_stage.py`) defines its computation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.core.ddl import is_reference
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.bounded_sessions import BoundedSessions
from dagster_jet.operators.expiring_totals import ExpiringTotals
from dagster_jet.operators.first_stage import (
    FirstStage,
    FramePartials,
    KeyPartials,
    SessionBuckets,
)
from dagster_jet.operators.operator import HASH_COLUMN, PARTITION_COLUMN
from dagster_jet.operators.rolling import RollingAggregate
from dagster_jet.operators.session import SessionWindows
from dagster_jet.operators.window import SlidingWindows
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.stateful import AggregateNode, RollingNode
from dagster_jet.pipeline.windows import SessionWindow
from dagster_jet.spark.planning.operator_plan import (
    Late,
    OperatorPlan,
    Partitions,
    Shape,
    arrow_schema,
    behind_watermark,
    moment_sql,
    quoted,
    row_input,
    spark_schema,
    time_sql,
)
from dagster_jet.spark.plans.row_by_row import check_row_by_row
from dagster_jet.spark.tasks.input_statistics import (
    READ_FROM_COLUMN,
    TIMED_COLUMN,
    TOP_COLUMN,
    Statistics,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet.operators.operator import Operator


def plan_windows(
    node: AggregateNode, source: DataFrame, partitions: Partitions, statistics: Statistics
) -> OperatorPlan:
    """Tumbling and sliding windows: partials per (key, frame)."""
    assert not isinstance(node.window, SessionWindow)
    frames, aggregation = node.frames, Aggregation(node.aggregates)
    stage = FramePartials(node.keys, aggregation, frames)
    shape = _shape(stage, source, node.time, partitions)
    operator = SlidingWindows(
        input_schema=arrow_schema(shape(source).schema),
        keys=node.keys,
        frames=frames,
        aggregation=aggregation,
        early_results=node.early_results_ms is not None,
        corrected=node.allowed_lateness_ms is not None,
    )
    ((_, end_sql),) = stage.group_columns(time_sql(source, node.time))
    shape = _shape(stage, source, node.time, partitions, statistics)
    late = Late(F.expr(end_sql), frames.late_until)
    return _plan(operator, stage, shape, partitions, node.time, late, statistics)


def plan_sessions(node: AggregateNode, source: DataFrame, partitions: Partitions) -> OperatorPlan:
    """Session windows: partials per (key, bucket of one gap), whose events are in one session; with
    a maximum per (key, event time)."""
    assert isinstance(node.window, SessionWindow)
    aggregation = Aggregation(node.aggregates)
    gap_ms, max_ms = node.window.gap_ms, node.window.max_ms
    stage = SessionBuckets(node.keys, aggregation, gap_ms if max_ms is None else 1)
    shape = _shape(stage, source, node.time, partitions)
    exact = _shape(replace(stage, width_ms=1), source, node.time, partitions)
    schema, early = arrow_schema(shape(source).schema), node.early_results_ms is not None
    operator: SessionWindows | BoundedSessions
    if max_ms is None:
        operator = SessionWindows(schema, node.keys, gap_ms, aggregation, early)
    else:
        operator = BoundedSessions(schema, node.keys, gap_ms, max_ms, aggregation, early)
    late = behind_watermark(source, node.time)
    plan = _plan(operator, stage, shape, partitions, node.time, late)
    return replace(plan, exact_shapes=(exact,))


def plan_rolling(
    node: RollingNode, source: DataFrame, partitions: Partitions, statistics: Statistics
) -> OperatorPlan:
    """Totals over all time: partials per key."""
    if node.ttl_ms is not None:
        return _plan_expiring(node, source, partitions, node.ttl_ms)
    aggregation = Aggregation(node.aggregates)
    stage = KeyPartials(node.keys, aggregation)
    # Without the lag of upstream windows: nothing is late here, and the time is emitted unchanged.
    event_time = None if node.time is None else EventTime(node.time.column)
    shape = _shape(stage, source, event_time, partitions)
    operator = RollingAggregate(
        input_schema=arrow_schema(shape(source).schema),
        keys=node.keys,
        aggregation=aggregation,
        result_time=None if node.time is None else node.time.column,
    )
    shape = _shape(stage, source, event_time, partitions, statistics)
    return _plan(operator, stage, shape, partitions, event_time, None, statistics)


def _plan_expiring(
    node: RollingNode, source: DataFrame, partitions: Partitions, ttl_ms: int
) -> OperatorPlan:
    """Totals since a pause: partials per (key, bucket of one ttl), which no pause divides."""
    assert node.time is not None
    aggregation = Aggregation(node.aggregates)
    stage = SessionBuckets(node.keys, aggregation, ttl_ms + 1)
    shape = _shape(stage, source, node.time, partitions)
    operator = ExpiringTotals(
        input_schema=arrow_schema(shape(source).schema),
        keys=node.keys,
        ttl_ms=ttl_ms,
        aggregation=aggregation,
        result_time=node.time.column,
        time_lag_ms=node.time.lag_ms,
    )
    late = behind_watermark(source, node.time)
    return _plan(operator, stage, shape, partitions, node.time, late)


def _plan(
    operator: Operator,
    stage: FirstStage,
    shape: Shape,
    partitions: Partitions,
    time: EventTime | None,
    late: Late | None,
    statistics: Statistics = Statistics.NONE,
) -> OperatorPlan:
    rows = row_input(operator, 0, stage.keys, partitions, time, first_stage=stage)
    return OperatorPlan(
        operator=operator,
        shapes=(shape,),
        inputs=(rows,),
        late=() if late is None else (late,),
        filters_late=stage.late_rows_are_left_out,
        result_type=spark_schema(operator.result_schema),
        statistics_columns=statistics.value,
    )


def _shape(
    stage: FirstStage,
    source: DataFrame,
    event_time: EventTime | None,
    partitions: Partitions,
    statistics: Statistics = Statistics.NONE,
) -> Shape:
    time = moment = "0L"
    if event_time is not None:
        time, moment = time_sql(source, event_time), moment_sql(source, event_time)
    address = {
        PARTITION_COLUMN: partitions.of(stage.keys),
        HASH_COLUMN: partitions.hash(stage.keys).alias(HASH_COLUMN),
    }
    groups = [
        *(address[name] for name in stage.address),
        *quoted(stage.keys),
        *(F.expr(sql).alias(name) for name, sql in stage.group_columns(time)),
    ]
    if statistics is Statistics.OF_PARTITIONS:
        groups.append(F.col(SOURCE_PARTITION_COLUMN).alias(READ_FROM_COLUMN))
    partials = [F.expr(sql).alias(name) for name, sql in stage.aggregate_columns(time, moment)]
    if statistics is not Statistics.NONE:
        time_ms = F.expr(time)
        partials += [F.count(time_ms).alias(TIMED_COLUMN), F.max(time_ms).alias(TOP_COLUMN)]
    columns = quoted([*stage.input_columns, *(field.name for field in statistics.value)])
    computed = with_expressions(stage.aggregation, source)
    return lambda frame: computed(frame).groupBy(*groups).agg(*partials).select(*columns)


def with_expressions(aggregation: Aggregation, source: DataFrame) -> Shape:
    """Adds the expressions of aggregates as columns, which have their texts as names.

    Raises:
        PipelineError: an expression's value depends on the epoch and its tasks.
    """
    inputs = (text for _, aggregate in aggregation.aggregates for text in aggregate.inputs)
    there = set(source.columns)
    wanted = [t for t in dict.fromkeys(inputs) if t not in there and not is_reference(t)]
    if not wanted:
        return lambda frame: frame
    columns = [F.expr(text).alias(text) for text in wanted]

    def computed(frame: DataFrame) -> DataFrame:
        return frame.select("*", *columns)

    check_row_by_row(None, None, source, computed(source))
    return computed
