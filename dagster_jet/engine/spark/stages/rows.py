"""Stages that look at every row: Python receives partition, key hash, event time and the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.engine.spark.stages.plan import (
    Partitions,
    StagePlan,
    arrow_schema,
    event_time_ms,
    quoted,
    spark_schema,
)
from dagster_jet.pipeline.stateful import DeduplicateNode
from dagster_jet.processors.deduplicate import Deduplicate
from dagster_jet.processors.operator import HASH_COLUMN, TIME_COLUMN, Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from dagster_jet.engine.spark.stages.plan import Late, Shape


def plan_deduplicate(node: DeduplicateNode, source: DataFrame, partitions: Partitions) -> StagePlan:
    keys = node.keys or tuple(source.columns)
    operator = Deduplicate(keys, arrow_schema(source.schema), node.within_ms)
    return _row_plan(operator, [addressed(source, keys, node.time_column, partitions)], source,
                     node.time_column)  # fmt: skip


def addressed(
    source: DataFrame, keys: Sequence[str], time_column: str | None, partitions: Partitions
) -> Shape:
    """Rows with their address in front: partition, key hash, event time."""
    time = F.lit(0).cast("long") if time_column is None else event_time_ms(source, time_column)
    address: list[Column] = [
        partitions.of(keys),
        partitions.hash(keys).alias(HASH_COLUMN),
        time.alias(TIME_COLUMN),
    ]
    columns = [*address, *quoted(source.columns)]
    return lambda frame: frame.select(*columns)


def _row_plan(
    operator: Operator, shapes: Sequence[Shape], source: DataFrame, time_column: str | None
) -> StagePlan:
    late: Late | None = None
    if time_column is not None:
        time = event_time_ms(source, time_column)
        late = lambda before_ms: time < F.lit(before_ms)  # noqa: E731
    return StagePlan(
        operator=operator,
        shapes=tuple(shapes),
        late=late,
        filters_late=False,
        result_type=spark_schema(operator.result_schema),
    )
