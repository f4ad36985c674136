"""Stages that need every row: Python receives partition, key hash, event time and the row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dagster_jet.dag import Processor, new_processor
from dagster_jet.errors import PipelineError
from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.deduplicate_in_order import DeduplicateInOrder
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.join_as_of import JoinAsOf
from dagster_jet.operators.operator import ARRIVAL_COLUMN, HASH_COLUMN, TIME_COLUMN, Operator
from dagster_jet.operators.row_input import RowInput
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.timed_map import TimedMap
from dagster_jet.operators.user.pattern import ROW, Pattern
from dagster_jet.operators.user.running import Running
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.output_type import output_type
from dagster_jet.pipeline.stateful import (
    CountWindowNode,
    DeduplicateNode,
    JoinAsOfNode,
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
from dagster_jet.spark.plans.row_by_row import check_row_by_row

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
        inner = DeduplicateInOrder(keys, row_schema, node.within_ms, node.keep)
        operator = InEventOrder(inner, node.time.column)
    shape = _addressed(source, keys, node.time, partitions, in_order=True)
    rows = row_input(operator, 0, keys, partitions, node.time)
    return _row_plan(operator, shape, rows, source, node.time)


def plan_join(
    node: JoinNode, sources: Sequence[DataFrame], partitions: Partitions, job: str
) -> OperatorPlan:
    """Interval join."""
    sides = _Sides(node, *sources)
    keys, left, right = sides.schemas(job)
    if node.how in ("semi", "anti") and node.condition is None:
        right = pa.schema([])
    operator = IntervalJoin(
        key_schema=keys,
        left_schema=left,
        right_schema=right,
        between_ms=node.between_ms,
        how=node.how,
        condition=node.condition,
        stage=node.name,
    )
    return sides.plan(operator, partitions, in_order=False)


def plan_join_as_of(
    node: JoinAsOfNode, sources: Sequence[DataFrame], partitions: Partitions, job: str
) -> OperatorPlan:
    """Rows with the newest versions of their key; without keys, with those of all.

    Raises:
        PipelineError: the versions lack a column of `subject`, or see `_Sides.schemas`.
    """
    sides = _Sides(node, *sources)
    schemas = sides.schemas(job)
    missing = [name for name in node.subject if name not in sides.names]
    if missing:
        raise PipelineError(
            f"the other stream has no column {', '.join(missing)}, which versions_of names; it has "
            f"{', '.join(sides.names)}.",
            job=job,
            stage=node.name,
            cure="Select it before the join, or correct versions_of.",
        )
    operator = JoinAsOf.of(
        node.name,
        *schemas,
        subject=[sides.names[name] for name in node.subject],
        keeps_all=node.how == "left",
        keep_ms=node.keep_ms,
        condition=node.condition,
        times=(sides.times[0].column, sides.times[1].column),
    )
    return sides.plan(operator, partitions, in_order=True)


@dataclass(frozen=True)
class _Sides:
    """Both inputs of a join. Clashing names of the right side get the suffix."""

    node: JoinNode | JoinAsOfNode
    left: DataFrame
    right: DataFrame

    @cached_property
    def own(self) -> list[str]:
        """The left side's columns besides the keys."""
        return [name for name in self.left.columns if name not in self.node.keys]

    @cached_property
    def names(self) -> dict[str, str]:
        """The right side's columns besides the keys: their names in the result."""
        return {
            name: f"{name}{self.node.suffix}" if name in self.own else name
            for name in self.right.columns
            if name not in self.node.keys
        }

    @property
    def times(self) -> tuple[EventTime, EventTime]:
        """Event times of both sides, with their columns in the result."""
        left, right = self.node.times
        return left, replace(right, column=self.names.get(right.column, right.column))

    @cached_property
    def renamed(self) -> DataFrame:
        return self.right.withColumnsRenamed(self.names)

    def schemas(self, job: str) -> tuple[pa.Schema, pa.Schema, pa.Schema]:
        """Keys, the other columns of the left side, those of the right side.

        Raises:
            PipelineError: a side lacks a key, or has it with another type.
        """
        keys = self.node.keys
        for frame, side in ((self.left, "left"), (self.right, "right")):
            missing = [key for key in keys if key not in frame.columns]
            if missing:
                raise PipelineError(
                    f"the {side} side has no column {', '.join(missing)} to join on; it has "
                    f"{', '.join(frame.columns)}.",
                    job=job,
                    stage=self.node.name,
                )
        types = self.left.select(*quoted(keys)).schema
        differing = [f.name for f in types if self.right.schema[f.name].dataType != f.dataType]
        if differing:
            raise PipelineError(
                f"the sides have different types of {', '.join(differing)}.",
                job=job,
                stage=self.node.name,
                cure="Cast one of them before the join.",
            )
        left = self.left.select(*quoted(self.own)).schema
        right = self.renamed.select(*quoted(list(self.names.values()))).schema
        return arrow_schema(types), arrow_schema(left), arrow_schema(right)

    def plan(
        self, operator: IntervalJoin | JoinAsOf, partitions: Partitions, *, in_order: bool
    ) -> OperatorPlan:
        times = self.times
        keys, address = self.node.keys, {*(field.name for field in ADDRESS), ARRIVAL_COLUMN}
        columns = [[n for n in s.names if n not in address] for s in operator.input_schemas]
        left_hash = right_hash = None
        copies: tuple[Column, ...] = ()
        if broadcasts := isinstance(operator, JoinAsOf) and not keys:
            left_hash, right_hash = partitions.spread(self.left), F.col(HASH_COLUMN)
            copies = (partitions.copies().alias(HASH_COLUMN),)
        left, right = (
            _addressed(side, keys, time, partitions, names, key_hash, in_order=in_order)
            for side, time, names, key_hash in (
                (self.left, times[0], columns[0], left_hash),
                (self.renamed, times[1], columns[1], right_hash),
            )
        )
        rows, others = (
            replace(row_input(operator, side, keys, partitions, time), is_spread=broadcasts)
            for side, time in enumerate(times)
        )

        def right_shape(frame: DataFrame) -> DataFrame:
            renamed = frame.withColumnsRenamed(self.names)
            return right(renamed.select("*", *copies) if copies else renamed)

        return OperatorPlan(
            operator=operator,
            shapes=(left, right_shape),
            inputs=(rows, replace(others, names=tuple(self.renamed.columns))),
            late=tuple(map(behind_watermark, (self.left, self.right), self.node.times)),
            filters_late=False,
            result_type=spark_schema(operator.result_schema),
        )


def plan_map(node: StatefulMapNode, source: DataFrame, partitions: Partitions) -> OperatorPlan:
    """A user's function on whole rows, or `match` on rows and the conditions that they meet.

    Raises:
        PipelineError: the value of a condition depends on the epoch and its tasks.
    """
    own = quoted(source.columns)

    def given(frame: DataFrame) -> DataFrame:
        return frame.select(*own).selectExpr(*node.columns) if node.columns else frame

    rows = given(source)
    if node.columns:
        check_row_by_row(None, None, source, rows)
    operator: Callable[..., StatefulMap] = StatefulMap
    if node.on_timer is not None:
        operator = partial(TimedMap, on_timer=node.on_timer, in_processing_time=node.follows_clock)
    output = arrow_schema(output_type(node.output_schema, rows.schema, node.name))
    function, on_evict = node.function, node.on_evict
    if isinstance(function, Running):
        function = replace(function, names=tuple(output.names))
        on_evict = None if on_evict is None else function.without_next
    elif isinstance(function, Pattern):
        row_type = cast("StructType", rows.schema[ROW].dataType)
        function = replace(function, names=tuple(row_type.names))
    inner = operator(
        stage=node.name,
        keys=node.keys,
        row_schema=arrow_schema(rows.schema),
        output_schema=output,
        function=function,
        create=node.create,
        ttl_ms=node.ttl_ms if node.on_timer is None else 0,
        on_evict=on_evict,
        keeps_dead_letters=node.keeps_dead_letters,
        has_time=node.time is not None and not node.follows_clock,
        state_format=node.saved_as,
    )
    plan = map_plan(inner, node, rows, partitions)
    (shape,) = plan.shapes
    return replace(plan, shapes=(lambda frame: shape(given(frame)),))


def plan_map_in_batches(
    node: StatefulMapInBatchesNode, source: DataFrame, partitions: Partitions
) -> OperatorPlan:
    """A user's function on tables of whole rows."""
    inner = StatefulMapInBatches(
        stage=node.name,
        keys=node.keys,
        row_schema=arrow_schema(source.schema),
        output_schema=arrow_schema(output_type(node.output_schema, source.schema, node.name)),
        state_columns=arrow_schema(cast("StructType", StructType.fromDDL(node.state_schema))),
        function=node.function,
        ttl_ms=node.ttl_ms,
        on_evict=node.on_evict,
    )
    return map_plan(inner, node, source, partitions)


def map_plan(
    inner: StatefulMap | StatefulMapInBatches,
    node: StatefulMapNode | StatefulMapInBatchesNode | CountWindowNode,
    source: DataFrame,
    partitions: Partitions,
    columns: Sequence[str] | None = None,
) -> OperatorPlan:
    """
    Args:
        columns: the columns that the operator takes; None: all.
    """
    operator = InEventOrder(inner, _column_of(node.time)) if node.in_event_order else inner
    shape = _addressed(source, node.keys, node.time, partitions, columns, in_order=True)
    can_be_late = node.in_event_order or (inner.ttl_ms is not None and not node.follows_clock)
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
        output_schema=arrow_schema(output_type(node.output_schema, source.schema, node.name)),
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
    operator = InEventOrder(inner, _column_of(node.time)) if node.in_event_order else inner
    shape = _addressed(source, node.keys, node.time, partitions, key_hash=key_hash, in_order=True)
    # The processor decides which rows are late, unless a sink takes late rows before it.
    rows = row_input(operator, 0, node.keys, partitions, node.time, hashes_wide=True)
    return _row_plan(operator, shape, rows, source, node.time)


def _column_of(time: EventTime | None) -> str | None:
    return None if time is None else time.column


def _overrides(processor: type[Processor], *methods: str) -> bool:
    return any(getattr(processor, name) is not getattr(Processor, name) for name in methods)


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
