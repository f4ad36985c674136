"""Rolling stages for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_jet.pipeline import aggregates as agg
from dagster_jet.processors.aggregation import Aggregation
from dagster_jet.processors.operator import HASH_COLUMN, PARTITION_COLUMN, TIME_COLUMN
from dagster_jet.processors.rolling import RollingAggregate

from .stage import Stage

GROUP = [PARTITION_COLUMN, HASH_COLUMN, "k"]


class RollingStage(Stage):
    def __init__(self, *, seed: int = 0, result_time: str | None = None, **aggregates: Any) -> None:
        self.aggregation = Aggregation(tuple((aggregates or {"n": agg.count()}).items()))
        schema = self.first_stage([]).schema
        operator = RollingAggregate(schema, ("k",), self.aggregation, result_time)
        super().__init__(operator, self.aggregation, seed)

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        table = self.table(events)
        partials = self.aggregation.first_stage(table, table.column("t"), GROUP)
        newest = table.group_by(GROUP, use_threads=False).aggregate([("t", "max")])
        return partials.add_column(3, TIME_COLUMN, newest["t_max"])
