"""Tumbling and sliding stages for tests, and what they should emit, worked out event by event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.first_stage import FramePartials
from dagster_jet.operators.window import SlidingWindows
from dagster_jet.pipeline import aggregates as agg
from dagster_jet.pipeline.windows import SlidingWindow

from .stage import Stage, ms


class FrameStage(Stage):
    def __init__(
        self,
        size: int,
        slide: int,
        offset: int = 0,
        *,
        seed: int = 0,
        early: bool = False,
        **aggregates: Any,
    ) -> None:
        self.window = SlidingWindow(size, slide, offset)
        aggregation = Aggregation(tuple((aggregates or {"sum": agg.sum("v")}).items()))
        self.first = FramePartials(("k",), aggregation, self.window.frames)
        schema = self.first_stage([]).schema
        frames = self.window.frames
        super().__init__(
            SlidingWindows(schema, ("k",), frames, aggregation, early), aggregation, seed
        )

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        table, _ = self.first.partials(self.table(events), None)
        return table

    def floor(self, watermark: int) -> int:
        return self.window.floor_watermark(watermark)

    def sums(self, *events: tuple[int, Any], wm: int | None = None, **flags: Any) -> dict[int, Any]:
        """Events of one key as (time, value); the sum per window end."""
        rows = self.step(*[("k", time, value) for time, value in events], wm=wm, **flags)
        return {
            ms(row["window_end"]): row["sum"] for row in sorted(rows, key=lambda r: r["window_end"])
        }


Contents = dict[tuple[Any, int], list[tuple[Any, int, Any]]]


def expected_windows(
    steps: Sequence[tuple[list[tuple[Any, int, Any]], int | None]], window: SlidingWindow
) -> tuple[list[Contents], list[Contents], int]:
    """By (key, window end) the events in it: per step of the windows it closes, and of those that
    are open after it. And how many events are late."""
    size, slide, offset = window.size_ms, window.slide_ms, window.offset_ms

    def boundary_above(time: int) -> int:
        end = offset - 10**6 * slide
        return end + ((time - end) // slide + 1) * slide

    contents: Contents = defaultdict(list)
    emitted: list[Contents] = []
    open_: list[Contents] = []
    watermark, late = None, 0
    for events, moved_to in steps:
        for event in events:
            frame = boundary_above(event[1])
            if watermark is not None and frame < boundary_above(watermark):
                late += 1
                continue
            for end in range(frame, frame + size, slide):
                contents[event[0], end].append(event)
        if moved_to is not None and (watermark is None or moved_to > watermark):
            watermark = moved_to
        due = [key for key in contents if watermark is not None and key[1] <= watermark]
        emitted.append({key: contents.pop(key) for key in due})
        open_.append({key: list(events) for key, events in contents.items()})
    return emitted, open_, late
