"""Counts the rows of one epoch as they pass: by Spark, or in a stage's tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.snapshot.manifest import Ack, Arrived
from dagster_jet.spark.epoch_contract import Observed
from dagster_jet.spark.planning.event_time import TimestampsPlan
from dagster_jet.spark.planning.partition_tops import read_tops
from dagster_jet.spark.plans.counters import Counters
from dagster_jet.spark.tasks.input_statistics import InputRef, total_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Seen:
    """Counts of one epoch."""

    event_times: Mapping[str, Observed]
    """By timestamps node that had rows."""
    source_rows: Mapping[str, int]
    late_rows: Mapping[str, int]
    """By stage."""


class Observations:
    """Counters of frames: attached before an action, read after it."""

    def __init__(self) -> None:
        self._source_rows: dict[str, str] = {}
        """Spark's name of the counter, by source."""
        self._late_rows: dict[tuple[str, int], str] = {}
        self._timestamps: dict[str, tuple[str, int, str | None]] = {}
        """With the number of totals, and the source whose partitions are observed one by one."""
        self._reported: dict[str, tuple[InputRef, str | None]] = {}
        """Timestamps nodes whose rows a stage's tasks count; with the source whose partitions they
        count one by one."""

    def count_source(self, source: str, rows: DataFrame) -> DataFrame:
        name = self._source_rows[source] = f"rows {source}"
        return rows.observe(name, F.count(F.lit(1)).alias("rows"))

    def count_late(self, stage: str, ordinal: int, rows: DataFrame, late: Column) -> DataFrame:
        name = self._late_rows[stage, ordinal] = f"late {ordinal} {stage}"
        return rows.observe(name, F.count_if(late).alias("late"))

    def observe_times(
        self, node: str, plan: TimestampsPlan, rows: DataFrame, *, per_partition: bool
    ) -> DataFrame:
        """
        Args:
            per_partition: partitions are observed one by one: `rows` have the partition's column.
        """
        name = f"times {node}"
        source = plan.partitions_of if per_partition else None
        self._timestamps[node] = name, len(plan.totals), source
        return rows.observe(name, *plan.totals, *(plan.per_partition if per_partition else ()))

    def expect_report(self, node: str, counted_by: InputRef, partitions_of: str | None) -> None:
        """The rows of this timestamps node are counted in the acks."""
        self._reported[node] = counted_by, partitions_of

    # --- after the action -----------------------------------------------------------------------

    def seen(
        self, action: DataFrame, acks: Sequence[Ack], partitions: Mapping[str, Sequence[str]]
    ) -> Seen:
        """
        Args:
            action: the frame that has run, which contains all observed frames.
            acks: all of the epoch's.
            partitions: `SourceFrame.partitions` by source.
        """
        counters = Counters(action)
        return Seen(
            event_times=self._event_times(counters, acks, partitions),
            source_rows={
                source: counters.count(name) for source, name in self._source_rows.items()
            },
            late_rows=self._late(counters),
        )

    def _late(self, counters: Counters) -> Mapping[str, int]:
        late: Counter[str] = Counter()
        for (stage, _), name in self._late_rows.items():
            late[stage] += counters.count(name)
        return late

    def _event_times(
        self, counters: Counters, acks: Sequence[Ack], partitions: Mapping[str, Sequence[str]]
    ) -> dict[str, Observed]:
        results = {}
        for node, (ref, source) in self._reported.items():
            total = total_of(
                ack.arrived[ref.ordinal] for ack in acks if ack.vertex == ref.stage and ack.arrived
            )
            tops = dict(total.partition_tops_ms) if source is not None else {}
            results[node] = Observed(total, _by_name(tops, source, partitions))
        for node, (name, count, source) in self._timestamps.items():
            texts = counters.texts(name)
            rows, timed, top, *ahead = (None if t is None else int(t) for t in texts[:count])
            assert rows is not None and timed is not None
            tops = read_tops(*texts[count:]) if source is not None else {}
            seen = _by_name(tops, source, partitions)
            far, farthest_ms = ahead or (0, top)
            results[node] = Observed(Arrived(rows, timed, top), seen, far or 0, farthest_ms)
        return results


def _by_name(
    tops: Mapping[int, int], source: str | None, partitions: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Newest event time by the name of the source's partition."""
    names = () if source is None else partitions[source]
    return {names[index]: top_ms for index, top_ms in tops.items() if 0 <= index < len(names)}
