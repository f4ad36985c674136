"""Session stages for tests, and what they should emit, worked out event by event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_jet.pipeline import aggregates as agg
from dagster_jet.processors.aggregation import Aggregation
from dagster_jet.processors.operator import HASH_COLUMN, PARTITION_COLUMN, TIME_COLUMN
from dagster_jet.processors.session import FIRST_TIME_COLUMN, SessionWindows

from .stage import Stage, ms, times_of


class SessionStage(Stage):
    def __init__(self, gap: int, *, seed: int = 0, early: bool = False, **aggregates: Any) -> None:
        self.gap = gap
        self.aggregation = Aggregation(tuple((aggregates or {"n": agg.count()}).items()))
        schema = self.first_stage([]).schema
        operator = SessionWindows(schema, ("k",), gap, self.aggregation, early)
        super().__init__(operator, self.aggregation, seed)

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Buckets. Late events are left out before, as the front end does."""
        watermark = getattr(self, "watermark_before", None)
        events = [e for e in events if watermark is None or e[1] >= watermark]
        table = self.table(events)
        times = times_of(table)
        bucket = pa.array(times // self.gap, pa.int64())
        table = table.append_column("bucket", bucket)
        group = [PARTITION_COLUMN, HASH_COLUMN, "k", "bucket"]
        partials = self.aggregation.first_stage(table, table.column("t"), group)
        spans = table.group_by(group, use_threads=False).aggregate([("t", "min"), ("t", "max")])
        arrays = [*partials.columns[:3], spans["t_min"], spans["t_max"], *partials.columns[4:]]
        names = [*group[:3], FIRST_TIME_COLUMN, TIME_COLUMN, *partials.column_names[4:]]
        return pa.Table.from_arrays(arrays, names)

    def step(self, *events: Any, **given: Any) -> list[dict[str, Any]]:
        self.watermark_before = self.watermark
        return super().step(*events, **given)

    def sessions(
        self, *times: int, wm: int | None = None, **flags: Any
    ) -> list[tuple[int, int, int]]:
        """Events of one key by their times; sessions as (start, end, events)."""
        rows = self.step(*[("k", time, 1) for time in times], wm=wm, **flags)
        return sorted((ms(r["window_start"]), ms(r["window_end"]), r["n"]) for r in rows)


Contents = dict[tuple[Any, int, int], list[tuple[Any, int, Any]]]


def expected_sessions(
    steps: Sequence[tuple[list[tuple[Any, int, Any]], int | None]], gap: int
) -> tuple[list[Contents], list[Contents]]:
    """By (key, start, end) the events in it: per step of the sessions it closes, and of those that
    are open after it."""
    pending: dict[Any, list[tuple[Any, int, Any]]] = defaultdict(list)
    emitted: list[Contents] = []
    open_: list[Contents] = []
    watermark = None
    for events, moved_to in steps:
        for event in events:
            if watermark is None or event[1] >= watermark:
                pending[event[0]].append(event)
        if moved_to is not None and (watermark is None or moved_to > watermark):
            watermark = moved_to
        emitted.append({})
        open_.append({})
        for key, mine in pending.items():
            runs: list[list[tuple[Any, int, Any]]] = []
            for event in sorted(mine, key=lambda e: e[1]):
                if runs and event[1] < runs[-1][-1][1] + gap:
                    runs[-1].append(event)
                else:
                    runs.append([event])
            pending[key] = []
            for run in runs:
                end = run[-1][1] + gap
                if watermark is not None and end < watermark:
                    emitted[-1][key, run[0][1], end] = run
                else:
                    open_[-1][key, run[0][1], end] = run
                    pending[key] += run
    return emitted, open_
