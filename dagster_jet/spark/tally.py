"""Counters of functions in stateless stages, whose tasks have no acks.

They reach the driver as Spark's own counts of rows do: Spark adds those of each task that succeeded
once, and drops those of a task that failed. Tasks run once more only if they have failed
(`spark.speculation`, `spark.stage.maxConsecutiveAttempts`), and frames that several branches read
are made once. Late tasks of an execution that has ended count for nobody: each has its own tally.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.accumulators import Accumulator, AccumulatorParam

from dagster_jet.core.measures import Measure, Measures, combined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Counted = dict[str, dict[str, Measure]]
"""By stage and name."""


class _Sums(AccumulatorParam[Counted]):
    def zero(self, value: Counted) -> Counted:
        return {}

    def addInPlace(self, value1: Counted, value2: Counted) -> Counted:  # noqa: N802 - of Spark
        return {
            stage: combined(value1.get(stage, {}), value2.get(stage, {}))
            for stage in {**value1, **value2}
        }


@dataclass(frozen=True)
class StageTally:
    """Counters of one stage; tasks add to it."""

    all: Accumulator[Counted]
    stage: str

    def __call__(self, counted: Measures) -> None:
        self.all.add({self.stage: dict(counted)})


class Tally:
    """Counters of one execution, on the driver."""

    def __init__(self, session: SparkSession) -> None:
        self._all = session.sparkContext.accumulator({}, _Sums())

    def of(self, stage: str) -> StageTally:
        return StageTally(self._all, stage)

    def take(self) -> Counted:
        """Returns what the Spark jobs since the last call have counted."""
        counted, self._all.value = self._all.value, {}
        return counted
