"""The number of lost executors, as Spark tells it while others join."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dagster_jet.spark.cluster.executors import executors_dead


class Status:
    """Spark's status store with one dead executor. Another one joins after the first call."""

    def __init__(self) -> None:
        self.alive = 1

    def executorList(self, active_only: bool) -> Any:  # noqa: N802 - Spark's name
        count = self.alive if active_only else self.alive + 1
        self.alive = 2
        return SimpleNamespace(size=lambda: count)


def test_an_executor_that_joins_meanwhile_does_not_hide_a_dead_one() -> None:
    """Failed before: the watch began with a number that was too low, and took the next one for a
    loss, so that it cancelled the first jobs of an execution."""
    status = Status()
    spark: Any = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: status))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=spark))
    assert [executors_dead(session) for _ in range(2)] == [1, 1]
