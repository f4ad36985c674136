"""What is observed of event time in an epoch, before any filter: rows, the newest event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from dagster_jet.engine.connector import PARTITION_COLUMN
from dagster_jet.engine.spark.stages.plan import event_time_ms
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import TimestampsNode
from dagster_jet.snapshot.manifest import Arrived

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Observed:
    """What was seen at a timestamps node, before any filter."""

    arrived: Arrived
    partition_tops_ms: Mapping[str, int]
    """Per partition that was observed and had rows."""


@dataclass(frozen=True)
class TimePlan:
    """What is observed at a timestamps node."""

    observed: tuple[Column, ...]
    time_ms: Column
    of_partitions: list[Column] = field(default_factory=list)
    """The newest event time of the first partition, the second, ..., as far as they were needed."""

    def columns(self, partitions: int) -> tuple[Column, ...]:
        """What to observe where so many partitions are watched."""
        # Rounded up, so that there are few different programs for Spark to compile.
        wanted = 1 << (partitions - 1).bit_length()
        partition = F.col(PARTITION_COLUMN)
        for index in range(len(self.of_partitions), wanted):
            top = F.max(F.when(partition == index, self.time_ms))
            self.of_partitions.append(top.alias(f"top_{index}"))
        return (*self.observed, *self.of_partitions[:wanted])


def plan_time(job: str, node: TimestampsNode, frame: DataFrame) -> TimePlan:
    """How to observe the event time of `frame`.

    Raises:
        PipelineError: there is no such column, or its type is not one of time.
    """
    column = node.timestamps.column
    if column not in frame.columns:
        raise PipelineError(
            f"there is no column {column!r} to take event time from; there are "
            f"{', '.join(frame.columns)}.",
            job=job,
            stage=node.upstream[0],
        )
    if not isinstance(frame.schema[column].dataType, TimestampType | LongType):
        raise PipelineError(
            f"event time {column!r} is {frame.schema[column].dataType.simpleString()}, "
            "expected timestamp, or bigint with milliseconds.",
            job=job,
            stage=node.upstream[0],
            cure="Declare it so in the schema, or convert it before with_timestamps().",
        )
    time = event_time_ms(frame, EventTime(column))
    return TimePlan(
        (
            F.count(F.lit(1)).alias("rows"),
            F.count(time).alias("timed"),
            F.max(time).alias("top"),
        ),
        time,
    )
