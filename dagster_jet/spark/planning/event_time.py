"""What Spark observes of event time in an epoch, before any filter: rows, the newest event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from dagster_jet.connectors.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import TimestampsNode
from dagster_jet.spark.planning.operator_plan import event_time_ms
from dagster_jet.spark.tasks.fusion import InputRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class TimestampsPlan:
    """Who counts the rows of a timestamps node, and finds their newest event."""

    totals: tuple[Column, ...]
    """What Spark observes: rows, those with event time, the newest event."""
    time_ms: Column
    counted_by: InputRef | None = None
    """The stage whose tasks report all that: Spark observes nothing."""
    partitions_of: str | None = None
    """The source whose partitions are observed one by one: nothing on the way loses them."""
    _tops: list[Column] = field(default_factory=list, repr=False, compare=False)
    """The newest event of the first partition, the second, ..., built as they are needed: a call
    into the JVM per column and epoch adds up."""

    def columns(self, partitions: int) -> tuple[Column, ...]:
        """What to observe where so many partitions are watched."""
        if not partitions:
            return self.totals
        # Rounded up, so that there are few different programs for Spark to compile.
        wanted = 1 << (partitions - 1).bit_length()
        partition = F.col(SOURCE_PARTITION_COLUMN)
        for index in range(len(self._tops), wanted):
            top = F.max(F.when(partition == index, self.time_ms))
            self._tops.append(top.alias(f"top_{index}"))
        return (*self.totals, *self._tops[:wanted])


def plan_timestamps(job: str, node: TimestampsNode, frame: DataFrame) -> TimestampsPlan:
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
    totals = (
        F.count(F.lit(1)).alias("rows"),
        F.count(time).alias("timed"),
        F.max(time).alias("top"),
    )
    return TimestampsPlan(totals, time)
