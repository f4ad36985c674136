"""What is counted beside the rows of one epoch while they pass: by Spark, or by a stage's tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F

from dagster_jet.snapshot.manifest import Ack, Arrived
from dagster_jet.spark.epoch_contract import Observed
from dagster_jet.spark.planning.event_time import TimestampsPlan
from dagster_jet.spark.tasks.fusion import InputRef
from dagster_jet.spark.tasks.input_statistics import total_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Observations:
    """The counters of one epoch: attached to frames before its action, read after it."""

    def __init__(self) -> None:
        self._source_rows: dict[str, Observation] = {}
        self._late_rows: dict[tuple[str, int], Observation] = {}
        self._timestamps: dict[str, tuple[Observation, tuple[str, ...]]] = {}
        """With the partitions that are observed one by one."""
        self._reported: dict[str, InputRef] = {}
        """Timestamps nodes whose rows a stage's tasks count."""

    def count_source(self, source: str, rows: DataFrame) -> DataFrame:
        observation = self._source_rows[source] = Observation()
        return rows.observe(observation, F.count(F.lit(1)).alias("rows"))

    def count_late(self, stage: str, ordinal: int, rows: DataFrame, late: Column) -> DataFrame:
        observation = self._late_rows[stage, ordinal] = Observation()
        return rows.observe(observation, F.count_if(late).alias("late"))

    def observe_times(
        self, node: str, plan: TimestampsPlan, rows: DataFrame, partitions: tuple[str, ...]
    ) -> DataFrame:
        """
        Args:
            partitions: those to observe one by one: `rows` have the partition's column.
        """
        observation = Observation()
        self._timestamps[node] = observation, partitions
        return rows.observe(observation, *plan.columns(len(partitions)))

    def expect_report(self, node: str, counted_by: InputRef) -> None:
        """The rows of this timestamps node are counted in the acks."""
        self._reported[node] = counted_by

    # --- after the action -----------------------------------------------------------------------

    def source_rows(self) -> dict[str, int]:
        return {name: o.get["rows"] for name, o in self._source_rows.items()}

    def late_rows(self) -> dict[str, int]:
        """By stage."""
        late: Counter[str] = Counter()
        for (stage, _), observation in self._late_rows.items():
            late[stage] += observation.get["late"]
        return late

    def event_times(self, acks: Sequence[Ack]) -> dict[str, Observed]:
        """By timestamps node that had rows to look at; `acks` are all of the epoch's."""
        results = {}
        for node, ref in self._reported.items():
            parts = [ack.arrived[ref.ordinal] for ack in acks if ack.vertex == ref.stage]
            results[node] = Observed(total_of(parts))
        for node, (observation, partitions) in self._timestamps.items():
            rows, timed, top, *tops = observation.get.values()
            # There may be more columns than partitions; see `TimestampsPlan.columns`.
            seen = {p: top for p, top in zip(partitions, tops, strict=False) if top is not None}
            results[node] = Observed(Arrived(rows, timed, top), seen)
        return results
