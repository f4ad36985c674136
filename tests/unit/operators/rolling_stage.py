"""Rolling stages for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.first_stage import KeyPartials
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
