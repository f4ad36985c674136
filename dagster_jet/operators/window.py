"""Tumbling and sliding windows: takes partials of frames, emits windows.

State has one or more rows per (key, frame), which are appended and never looked up. A window is
assembled when the watermark closes it, so the cost of a step depends on the input and the closed
windows, not on the size of the state. This is the second of two stages; the first (in the JVM, or
`Aggregation.first_stage`) is stateless.

With an allowed lateness frames are kept longer, and a row of a closed window emits it again.

At-least-once: after a restart the rows between the snapshot and the crash are counted again in
windows that were open at the snapshot; a window emitted since then is emitted again, and rows that
were late under the lost watermark may be on time now.
Source: Hazelcast Jet `SlidingWindowP`; vectors.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dagster_jet.core.window_frames import Frames
from dagster_jet.errors import BadRowError
from dagster_jet.operators.aggregates.aggregation import ROW_COUNT, Aggregation, row_count
from dagster_jet.operators.aggregates.grouping import rows_where
from dagster_jet.operators.operator import PARTITION_COLUMN, StateReader, Step, StepInput
from dagster_jet.operators.partials_operator import PartialsOperator
from dagster_jet.operators.rows.casting import cast_rows
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.window_results import (
    check_times,
    window_result_schema,
    window_results,
)

WINDOW_END_MS = "__window_end"
"""int64 ms: exclusive end that names a frame or a window."""
MAX_ROWS_AT_ONCE = 1 << 20
"""Approximate number of rows for which frames are spread over windows at once. Bounds memory when
the watermark jumps, and at the end of the input."""

FEW_WINDOWS = 8
"""Up to this many windows per frame, a frame is merged into each window directly."""
_IS_DENSE = 0.75
"""Merging pairs of blocks stops when more than this share of the rows would remain."""


@dataclass(frozen=True)
class SlidingWindows(PartialsOperator):
    """Operator for windows; with `Frames.per_window` = 1 they are tumbling.

    Every window with rows whose end is at or before the watermark is emitted once. A row is late if
    its *frame* has ended at or before the watermark minus the allowed lateness; it is then dropped,
    also from later windows that contain the frame. A row that is not late, but whose frame has
    ended, is in windows that were emitted: each is emitted once more in this step.

    Changing the code: a new `size_ms` with the same slide and offset takes effect with the next
    window. Frames that had expired under the old size are missing once from a longer window. A
    longer lateness applies to windows all of whose frames are there; earlier rows stay late. A
    change of slide or offset is refused when the job starts (`snapshot.plan`).
    """

    input_schema: pa.Schema
    """`__partition`, keys, `WINDOW_END_MS` (the frame's end), partials, `__rows`."""
    keys: tuple[str, ...]
    frames: Frames
    aggregation: Aggregation
    early_results: bool = False
    corrected: bool = False
    """Results have the column `CORRECTION`."""

    @cached_property
    def result_schema(self) -> pa.Schema:
        return window_result_schema(
            self.aggregation,
            self.keys,
            self.state_schema,
            early=self.early_results,
            corrected=self.corrected,
        )

    @property
    def time_column(self) -> str:
        return WINDOW_END_MS

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """One row per (key, frame)."""
        table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
        merged = self.aggregation.merge(table, [PARTITION_COLUMN, *self.keys, WINDOW_END_MS])
        return cast_rows(merged.select(self.state_schema.names), self.state_schema)

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        closed, closing = self._floor(given.before_ms), self._floor(given.after_ms)
        late_until = None
        if given.before_ms is not None:
            late_until = self.frames.late_until(given.before_ms, given.expired_until_ms)
        timely, late = _split_late(arrived, late_until)
        check_times(_ends(timely))
        timely = self.aggregation.admit(timely)
        results = self._corrections(timely, state, closed, given.version)
        if closing is not None and closing != closed:
            windows = self._windows([timely, state.due(closing)], closed, closing)
            results += map(self._results, windows)
        if given.early and self.early_results:
            windows = self._windows([timely, state.scan()], closing, None)
            results += (self._results(window, early=True) for window in windows)
        expired = self.expired_until(given.after_ms)
        if expired is not None:
            timely = rows_where(timely, _ends(timely) > expired)
        return Step(
            results=pa.concat_tables(results) if results else self.result_schema.empty_table(),
            delta=self.merge([timely]),
            rows_in=row_count(arrived),
            late=late,
        )

    def expired_until(self, watermark_ms: int | None) -> int | None:
        return None if watermark_ms is None else self.frames.expired_until(watermark_ms)

    def _floor(self, watermark_ms: int | None) -> int | None:
        return None if watermark_ms is None else self.frames.floor(watermark_ms)

    def _corrections(
        self, timely: pa.Table, state: StateReader, closed: int | None, version: int
    ) -> list[pa.Table]:
        """Results of the closed windows that get rows in this step."""
        if closed is None or not (behind := _ends(timely) <= closed).any():
            return []
        size, slide = self.frames.size_ms, self.frames.slide_ms
        rows = rows_where(timely, behind)
        first = int(_ends(rows).min())
        known = state.due(closed)
        partitions = [table.column(PARTITION_COLUMN).to_numpy() for table in (rows, known)]
        near = np.isin(partitions[1], partitions[0]) & (_ends(known) > first - size)
        known = rows_where(known, near)
        mine, of_known = key_codes(self.keys, rows, known)
        known = rows_where(known, np.isin(of_known, mine))
        results = []
        for windows in self._windows([rows, known], first - slide, closed):
            ends = _ends(windows)
            touched = self._spread(rows, int(ends.min()) - slide, int(ends.max()))
            window = [*self.keys, WINDOW_END_MS]
            codes, touched_codes = key_codes(window, windows, touched.over_windows(slide))
            corrected = rows_where(windows, np.isin(codes, touched_codes))
            results.append(self._results(corrected, correction=version))
        return results

    def _results(self, windows: pa.Table, *, early: bool = False, correction: int = 0) -> pa.Table:
        ends = _ends(windows)
        return window_results(
            self.aggregation,
            self.keys,
            self.result_schema,
            windows,
            ends - self.frames.size_ms,
            ends,
            early=early,
            correction=correction,
        )

    def _spread(self, table: pa.Table, after: int | None, until: int | None) -> _Spread:
        """Each frame with its windows that have an end in (`after`, `until`]; None: unbounded."""
        size, slide = self.frames.size_ms, self.frames.slide_ms
        ends = _ends(table)
        first = ends if after is None else np.maximum(ends, after + slide)
        last = ends + (size - slide)
        if until is not None:
            last = np.minimum(last, until)
        return _Spread(table, first, np.maximum((last - first) // slide + 1, 0))

    def _windows(
        self, tables: list[pa.Table], after: int | None, until: int | None
    ) -> list[pa.Table]:
        """Merged partials of the windows with an end in (`after`, `until`]; None: unbounded. The
        label of a window is its end.

        Goes from frames to windows, so windows without rows cost nothing.
        """
        slide = self.frames.slide_ms
        table = pa.concat_tables(tables)
        whole = self._spread(table, after, until)
        first, counts, total = whole.first, whole.counts, whole.rows
        if total == 0:
            return []
        wanted = counts > 0
        last = first + (counts - 1) * slide
        spreads = [whole]
        if total > FEW_WINDOWS * len(counts):
            spreads = self._in_blocks(table, after, until)
        low, high = int(first[wanted].min()), int(last[wanted].max())
        if sum(spread.rows for spread in spreads) > MAX_ROWS_AT_ONCE and low < high:
            table = rows_where(table, wanted)
            middle = low + (high - low) // (2 * slide) * slide
            lower = self._windows([table], low - slide, middle)
            return lower + self._windows([table], middle, high)
        # From here a row stands for one window; the label of its frame becomes that of the window.
        return [self.merge([spread.over_windows(slide) for spread in spreads])]

    def _in_blocks(self, table: pa.Table, after: int | None, until: int | None) -> list[_Spread]:
        """Merges frames to blocks of 2, 4, 8, ... frames. Each block is spread over the windows
        that contain it but not the block that it is half of. So a window is assembled from about
        two blocks per doubling of its length, not from all of its frames.

        If the keys have few frames, nothing is merged and the result is the same as without blocks.
        """
        frames = self.frames
        slide, offset, per_window = frames.slide_ms, frames.offset_ms, frames.per_window
        blocks = self.merge([_with_ends(table, (_ends(table) - offset) // slide)])
        width, spreads = 1, []
        while True:
            number = _ends(blocks)
            halves = self.merge([_with_ends(blocks, number // 2)])
            is_last = 2 * width > per_window or halves.num_rows > _IS_DENSE * blocks.num_rows
            # By number of their last frame: the windows that contain all of the block's frames...
            begin = number * width
            first, last = begin + width - 1, begin + per_window - 1
            if not is_last:  # ...but not those of the other half.
                is_left = number % 2 == 0
                first = np.where(is_left, first, np.maximum(first, begin + per_window - width))
                last = np.where(is_left, np.minimum(last, begin + 2 * width - 2), last)
            first, last = first * slide + offset, last * slide + offset
            if after is not None:
                first = np.maximum(first, after + slide)
            if until is not None:
                last = np.minimum(last, until)
            spreads.append(_Spread(blocks, first, np.maximum((last - first) // slide + 1, 0)))
            if is_last:
                return spreads
            blocks, width = halves, 2 * width


@dataclass(frozen=True)
class _Spread:
    """Rows, each of which belongs to a range of consecutive windows."""

    table: pa.Table
    first: np.ndarray
    """Per row: the end of its first window."""
    counts: np.ndarray
    """Per row: the number of its windows."""

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def over_windows(self, slide_ms: int) -> pa.Table:
        """Repeats each row for each of its windows, labelled with the window's end."""
        table, first, counts, total = self.table, self.first, self.counts, self.rows
        if total and counts.max() > 1:
            rows = np.repeat(np.arange(len(counts)), counts)
            nth = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
            table = table.take(pa.array(rows))
            first = first[rows] + nth * slide_ms
        elif total < len(counts):
            table, first = rows_where(table, counts > 0), first[counts > 0]
        return _with_ends(table, first)


def _split_late(table: pa.Table, closed_end_ms: int | None) -> tuple[pa.Table, int]:
    """Drops rows of frames that a watermark has closed; returns the rest and the number dropped."""
    ends = _ends(table)  # without a watermark, too: raises for rows without event time
    if closed_end_ms is None or table.num_rows == 0:
        return table, 0
    timely = rows_where(table, ends > closed_end_ms)
    if timely.num_rows == table.num_rows:
        return table, 0
    return timely, row_count(table) - row_count(timely)


def _ends(table: pa.Table) -> np.ndarray:
    column = table.column(WINDOW_END_MS)
    if column.null_count:
        raise BadRowError(
            "rows have no event time, so they are in no window.",
            cure="Filter rows without an event time, or give them one, before the window.",
        )
    ends: np.ndarray = column.to_numpy()
    return ends


def _with_ends(table: pa.Table, ends: np.ndarray) -> pa.Table:
    place = table.schema.get_field_index(WINDOW_END_MS)
    return table.set_column(place, table.schema.field(place), pa.array(ends, pa.int64()))


__all__ = ["ROW_COUNT", "WINDOW_END_MS", "SlidingWindows"]
