"""Session stages for tests, and what they should emit, worked out event by event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.bounded_sessions import BoundedSessions
from dagster_jet.operators.first_stage import SessionBuckets
from dagster_jet.operators.session import SessionWindows
from dagster_jet.pipeline import aggregates as agg

from .stage import Stage, ms


class SessionStage(Stage):
    def __init__(
        self,
        gap: int,
        *,
        most: int | None = None,
        seed: int = 0,
        early: bool = False,
        exact: bool = False,
        **aggregates: Any,
    ) -> None:
        """
        Args:
            exact: buckets are of one millisecond and have late rows, as in prepared frames.
        """
        self.gap, self.exact, self.late_before = gap, exact, 0
        self.aggregation = Aggregation(tuple((aggregates or {"n": agg.count()}).items()))
        width = gap if most is None and not exact else 1
        self.first = SessionBuckets(("k",), self.aggregation, width)
        schema = self.first_stage([]).schema
        operator: SessionWindows | BoundedSessions
        if most is None:
            operator = SessionWindows(schema, ("k",), gap, self.aggregation, early)
        else:
            operator = BoundedSessions(schema, ("k",), gap, most, self.aggregation, early)
        super().__init__(operator, self.aggregation, seed)

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        watermark = None if self.exact else self.watermark
        table, late = self.first.partials(self.table(events), watermark)
        self.late_before += late
        return table

    def sessions(
        self, *times: int, wm: int | None = None, **flags: Any
    ) -> list[tuple[int, int, int]]:
        """Events of one key by their times; sessions as (start, end, events)."""
        rows = self.step(*[("k", time, 1) for time in times], wm=wm, **flags)
        return sorted((ms(r["window_start"]), ms(r["window_end"]), r["n"]) for r in rows)


Contents = dict[tuple[Any, int, int], list[tuple[Any, int, Any]]]


def expected_sessions(
    steps: Sequence[tuple[list[tuple[Any, int, Any]], int | None]], gap: int, most: int = 10**15
) -> tuple[list[Contents], list[Contents]]:
    """Number of events by (key, start, end): per step those of sessions that it closes, and of
    sessions that are open after it. `most`: largest duration."""
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
                if runs and event[1] < min(runs[-1][-1][1] + gap, runs[-1][0][1] + most):
                    runs[-1].append(event)
                else:
                    runs.append([event])
            pending[key] = []
            for run in runs:
                end = min(run[-1][1] + gap, run[0][1] + most)
                if watermark is not None and end < watermark:
                    emitted[-1][key, run[0][1], end] = run
                else:
                    open_[-1][key, run[0][1], end] = run
                    pending[key] += run
    return emitted, open_
