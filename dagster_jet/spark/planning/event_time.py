"""Spark's observation of event time in an epoch, before any filter: row counts, newest event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampType

from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import TimestampsNode
from dagster_jet.spark.planning.operator_plan import event_time_ms
from dagster_jet.spark.planning.partition_tops import newest_per_partition
from dagster_jet.spark.tasks.input_statistics import InputRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class TimestampsPlan:
    """How the rows of a timestamps node are counted, and their newest event is found."""

    time: Column
    """Event time in ms."""
    totals: tuple[Column, ...]
    """Aggregates observed by Spark: rows, rows with event time, the newest event."""
    per_partition: tuple[Column, Column]
    """Further aggregates if partitions are observed, for `read_tops`."""
    counted_by: InputRef | None = None
    """The stage whose tasks report all this; Spark then observes nothing."""
    partitions_of: str | None = None
    """The source whose partitions are observed one by one: no node on the way drops them."""

    def up_to(self, latest_ms: int) -> TimestampsPlan:
        """The same, but no newest event is later; two more totals: the number of rows that are, and
        the newest event of all."""
        counts = F.when(self.time <= F.lit(latest_ms), self.time)
        rows, timed, _ = self.totals
        ahead = F.count_if(self.time > F.lit(latest_ms)).alias("ahead")
        return replace(
            self,
            totals=(rows, timed, F.max(counts).alias("top"), ahead, F.max(self.time).alias("all")),
            per_partition=newest_per_partition(counts),
        )


def plan_timestamps(job: str, node: TimestampsNode, frame: DataFrame) -> TimestampsPlan:
    """Plans the observation of the event time of `frame`.

    Raises:
        PipelineError: there is no such column, or its type is not a time type.
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
            cure="Declare the column with one of these types in the schema, or convert it before "
            "with_timestamps().",
        )
    time = event_time_ms(frame, EventTime(column))
    totals = (
        F.count(F.lit(1)).alias("rows"),
        F.count(time).alias("timed"),
        F.max(time).alias("top"),
    )
    return TimestampsPlan(time, totals, newest_per_partition(time))
