"""Stages that need every row: Python receives partition, key hash, event time and the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dagster_jet.dag import Processor, new_processor
from dagster_jet.errors import PipelineError
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.deduplicate_in_order import DeduplicateInOrder
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.operator import ARRIVAL_COLUMN, HASH_COLUMN, TIME_COLUMN, Operator
from dagster_jet.operators.row_input import RowInput
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.stateful import (
    DeduplicateNode,
    JoinNode,
    ProcessorNode,
    StatefulMapInBatchesNode,
    StatefulMapNode,
)
from dagster_jet.spark.planning.operator_plan import (
    OperatorPlan,
    Partitions,
    arrow_schema,
    behind_watermark,
    event_time_ms,
    quoted,
    row_input,
    spark_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from dagster_jet.spark.planning.operator_plan import Shape


def plan_deduplicate(
    node: DeduplicateNode, source: DataFrame, partitions: Partitions
) -> OperatorPlan:
    keys = node.keys or tuple(source.columns)
    row_schema = arrow_schema(source.schema)
    operator: Operator = Deduplicate(keys, row_schema, node.within_ms)
    if node.in_event_order:
        operator = InEventOrder(DeduplicateInOrder(keys, row_schema, node.within_ms, node.keep))
    shape = _addressed(source, keys, node.time, partitions, in_order=True)
    rows = row_input(operator, 0, keys, partitions, node.time)
    return _row_plan(operator, shape, rows, source, node.time)


def plan_join(
    node: JoinNode, sources: Sequence[DataFrame], partitions: Partitions, job: str
) -> OperatorPlan:
    """Interval join: each side's keys first; clashing names of the right side get the suffix."""
    left, right = sources
    keys = node.keys
    for frame, side in ((left, "left"), (right, "right")):
        missing = [key for key in keys if key not in frame.columns]
        if missing:
            raise PipelineError(
                f"the {side} side has no column {', '.join(missing)} to join on; it has "
                f"{', '.join(frame.columns)}.",
                job=job,
                stage=node.name,
            )
    own = [name for name in left.columns if name not in keys]
    other = {
        name: f"{name}{node.suffix}" if name in own else name
        for name in right.columns
        if name not in keys
    }
    right = right.withColumnsRenamed(other)
    types = left.select(*quoted(keys)).schema
    differing = [f.name for f in types if right.schema[f.name].dataType != f.dataType]
    if differing:
        raise PipelineError(
            f"the sides have different types of {', '.join(differing)}.",
            job=job,
            stage=node.name,
            cure="Cast one of them before the join.",
        )
    needs_right = node.how not in ("semi", "anti") or node.condition is not None
    others = list(other.values()) if needs_right else []
    operator = IntervalJoin(
        key_schema=arrow_schema(types),
        left_schema=arrow_schema(left.select(*quoted(own)).schema),
        right_schema=arrow_schema(right.select(*quoted(others)).schema),
        between_ms=node.between_ms,
        how=node.how,
        condition=node.condition,
        stage=node.name,
    )
    left_time, right_time = node.times
    right_time = replace(right_time, column=other.get(right_time.column, right_time.column))
    left_shape = _addressed(left, keys, left_time, partitions, [*keys, *own])
    right_columns = [*keys, *others]
    right_shape = _addressed(right, keys, right_time, partitions, right_columns)
    return OperatorPlan(
        operator=operator,
        shapes=(left_shape, lambda frame: right_shape(frame.withColumnsRenamed(other))),
        inputs=(
            row_input(operator, 0, keys, partitions, left_time),
            row_input(operator, 1, keys, partitions, right_time, names=right.columns),
        ),
        late=tuple(map(behind_watermark, sources, node.times)),
        filters_late=False,
        result_type=spark_schema(operator.result_schema),
    )


def plan_map(node: StatefulMapNode, source: DataFrame, partitions: Partitions) -> OperatorPlan:
    """A user's function on whole rows."""
    inner = StatefulMap(
        stage=node.name,
        keys=node.keys,
        row_schema=arrow_schema(source.schema),
        output_schema=arrow_schema(_parsed(node.output_schema)),
        function=node.function,
        create=node.create,
        ttl_ms=node.ttl_ms,
        on_evict=node.on_evict,
        keeps_dead_letters=node.keeps_dead_letters,
        has_time=node.time is not None,
        state_format=node.saved_as,
    )
    return _map_plan(inner, node, source, partitions)


def plan_map_in_batches(
    node: StatefulMapInBatchesNode, source: DataFrame, partitions: Partitions
) -> OperatorPlan:
    """A user's function on tables of whole rows."""
    inner = StatefulMapInBatches(
        stage=node.name,
        keys=node.keys,
        row_schema=arrow_schema(source.schema),
        output_schema=arrow_schema(_parsed(node.output_schema)),
        state_columns=arrow_schema(_parsed(node.state_schema)),
        function=node.function,
        ttl_ms=node.ttl_ms,
        on_evict=node.on_evict,
    )
    return _map_plan(inner, node, source, partitions)


def _map_plan(
    inner: StatefulMap | StatefulMapInBatches,
    node: StatefulMapNode | StatefulMapInBatchesNode,
    source: DataFrame,
    partitions: Partitions,
) -> OperatorPlan:
    operator = InEventOrder(inner) if node.in_event_order else inner
    shape = _addressed(source, node.keys, node.time, partitions, in_order=True)
    can_be_late = node.in_event_order or node.ttl_ms is not None
    time = node.time if can_be_late else None
    rows = row_input(operator, 0, node.keys, partitions, node.time)
    return _row_plan(operator, shape, rows, source, time)


def plan_processor(
    node: ProcessorNode, source: DataFrame, partitions: Partitions, job: str
) -> OperatorPlan:
    """A user's processor: whole rows, or batches of them."""
    processor = type(new_processor(node.supplier, node.name, 0, job=job))
    inner = SparkProcessor(
        stage=node.name,
        supplier=node.supplier,
        row_schema=arrow_schema(source.schema),
        output_schema=arrow_schema(_parsed(node.output_schema)),
        row_keys=node.keys,
        in_batches=node.in_batches,
        partition_count=partitions.count,
        job=job,
        commits_in_two_phases=_overrides(
            processor, "snapshot_commit_prepare", "snapshot_commit_finish"
        ),
        has_timers=_overrides(processor, "try_process"),
        state_format=node.saved_as,
    )
    # A processor computes the partition of a key itself, with every integer as bigint and every
    # floating-point number as double.
    key_hash = partitions.hash(node.keys, of=source)
    operator = InEventOrder(inner) if node.in_event_order else inner
    shape = _addressed(source, node.keys, node.time, partitions, key_hash=key_hash, in_order=True)
    # The processor decides which rows are late, unless a sink takes late rows before it.
    rows = row_input(operator, 0, node.keys, partitions, node.time, hashes_wide=True)
    return _row_plan(operator, shape, rows, source, node.time)


def _overrides(processor: type[Processor], *methods: str) -> bool:
    return any(getattr(processor, name) is not getattr(Processor, name) for name in methods)


def _parsed(ddl: str) -> StructType:
    return cast(StructType, StructType.fromDDL(ddl))


def _addressed(
    source: DataFrame,
    keys: Sequence[str],
    event_time: EventTime | None,
    partitions: Partitions,
    columns: Sequence[str] | None = None,
    key_hash: Column | None = None,
    *,
    in_order: bool = False,
) -> Shape:
    """Rows with their address in front: partition, key hash, event time.

    Args:
        in_order: with the order of their arrival, which a shuffle does not keep.
    """
    time = F.lit(0).cast("long") if event_time is None else event_time_ms(source, event_time)
    key_hash = partitions.hash(keys) if key_hash is None else key_hash
    address: list[Column] = [
        partitions.of_hash(key_hash),
        key_hash.alias(HASH_COLUMN),
        time.alias(TIME_COLUMN),
    ]
    if in_order:
        address.append(F.monotonically_increasing_id().alias(ARRIVAL_COLUMN))
    selected = [*address, *quoted(columns or source.columns)]
    return lambda frame: frame.select(*selected)


def _row_plan(
    operator: Operator, shape: Shape, rows: RowInput, source: DataFrame, time: EventTime | None
) -> OperatorPlan:
    return OperatorPlan(
        operator=operator,
        shapes=(shape,),
        inputs=(rows,),
        late=() if time is None else (behind_watermark(source, time),),
        filters_late=False,
        result_type=spark_schema(operator.result_schema),
    )
