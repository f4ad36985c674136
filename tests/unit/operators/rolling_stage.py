"""Rolling stages for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.expiring_totals import ExpiringTotals
from dagster_jet.operators.first_stage import KeyPartials, SessionBuckets
from dagster_jet.operators.rolling import RollingAggregate
from dagster_jet.pipeline import aggregates as agg

from .stage import Stage


class RollingStage(Stage):
    def __init__(self, *, seed: int = 0, result_time: str | None = None, **aggregates: Any) -> None:
        self.aggregation = Aggregation(tuple((aggregates or {"n": agg.count()}).items()))
        self.first = KeyPartials(("k",), self.aggregation)
        schema = self.first_stage([]).schema
        operator = RollingAggregate(schema, ("k",), self.aggregation, result_time)
        super().__init__(operator, self.aggregation, seed)

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        table, _ = self.first.partials(self.table(events), None)
        return table


class ExpiringStage(Stage):
    """Totals with a time to live."""

    def __init__(self, ttl: int, *, seed: int = 0, **aggregates: Any) -> None:
        self.aggregation = Aggregation(tuple((aggregates or {"n": agg.count()}).items()))
        self.first = SessionBuckets(("k",), self.aggregation, ttl + 1)
        schema = self.first_stage([]).schema
        operator = ExpiringTotals(schema, ("k",), ttl, self.aggregation, "at")
        super().__init__(operator, self.aggregation, seed)

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        table, self.late_before = self.first.partials(self.table(events), self.watermark)
        return table


def newest_life(events: Sequence[tuple[Any, int, Any]], ttl: int) -> list[tuple[Any, int, Any]]:
    """The rows of a key since its last pause."""
    life: list[tuple[Any, int, Any]] = []
    for event in sorted(events, key=lambda event: event[1]):
        if life and event[1] > life[-1][1] + ttl:
            life = []
        life.append(event)
    return life
