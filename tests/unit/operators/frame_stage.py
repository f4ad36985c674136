"""Tumbling and sliding stages for tests, and what they should emit, worked out event by event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
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
        lateness: int | None = None,
        **aggregates: Any,
    ) -> None:
        self.window = SlidingWindow(size, slide, offset)
        aggregation = Aggregation(tuple((aggregates or {"sum": agg.sum("v")}).items()))
        self.first = FramePartials(("k",), aggregation, self.window.frames)
        schema = self.first_stage([]).schema
        frames = replace(self.window.frames, lateness_ms=lateness or 0)
        corrected = lateness is not None
        super().__init__(
            SlidingWindows(schema, ("k",), frames, aggregation, early, corrected), aggregation, seed
        )

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        table, _ = self.first.partials(self.table(events), None)
        return table

    def floor(self, watermark: int) -> int:
        return self.operator.frames.floor_watermark(watermark)

    def change_lateness(self, lateness: int) -> None:
        frames = replace(self.operator.frames, lateness_ms=lateness)
        self.operator = self.state.operator = replace(self.operator, frames=frames)

    def sums(self, *events: tuple[int, Any], wm: int | None = None, **flags: Any) -> dict[int, Any]:
        """Events of one key as (time, value); the sum per window end."""
        rows = self.step(*[("k", time, value) for time, value in events], wm=wm, **flags)
        return {
            ms(row["window_end"]): row["sum"] for row in sorted(rows, key=lambda r: r["window_end"])
        }


Contents = dict[tuple[Any, int], list[tuple[Any, int, Any]]]


def expected_windows(
    steps: Sequence[tuple[list[tuple[Any, int, Any]], int | None]],
    window: SlidingWindow,
    lateness: int = 0,
) -> tuple[list[Contents], list[Contents], list[Contents], int]:
    """Number of events by (key, window end): per step those of windows that it closes, of windows
    that are open after it, and of windows that it corrects. Also the number of late events."""
    size, slide, offset = window.size_ms, window.slide_ms, window.offset_ms

    def boundary_above(time: int) -> int:
        end = offset - 10**6 * slide
        return end + ((time - end) // slide + 1) * slide

    contents: Contents = defaultdict(list)
    emitted: list[Contents] = []
    open_: list[Contents] = []
    corrected: list[Contents] = []
    closed: Contents = defaultdict(list)
    watermark, late = None, 0
    for events, moved_to in steps:
        touched = set()
        for event in events:
            frame = boundary_above(event[1])
            if watermark is not None and frame + lateness <= watermark:
                late += 1
                continue
            for end in range(frame, frame + size, slide):
                if watermark is not None and end <= watermark:
                    closed[event[0], end].append(event)
                    touched.add((event[0], end))
                else:
                    contents[event[0], end].append(event)
        corrected.append({key: list(closed[key]) for key in touched})
        if moved_to is not None and (watermark is None or moved_to > watermark):
            watermark = moved_to
        due = [key for key in contents if watermark is not None and key[1] <= watermark]
        emitted.append({key: contents.pop(key) for key in due})
        closed |= {key: list(events) for key, events in emitted[-1].items()}
        open_.append({key: list(events) for key, events in contents.items()})
    return emitted, open_, corrected, late
