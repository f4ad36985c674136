"""First of the two stages of an aggregation: turns rows into the partials an operator takes.

It is stateless: it emits everything that arrived in a step, so a barrier has nothing to save. Spark
    runs it as ``groupBy(address, keys, group_columns)``, ``agg(aggregate_columns)``,
    ``select(input_columns)``. Without a JVM, `partials` computes the same from an Arrow table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dagster_jet.core.window_frames import Frames
from dagster_jet.operators.aggregates.aggregation import ROW_COUNT, Aggregation
from dagster_jet.operators.lateness import drop_late, event_times
from dagster_jet.operators.operator import HASH_COLUMN, PARTITION_COLUMN, TIME_COLUMN
from dagster_jet.operators.session import FIRST_TIME_COLUMN
from dagster_jet.operators.window import WINDOW_END_MS

SqlColumns = tuple[tuple[str, str], ...]
"""(column name, Spark SQL expression)."""

_BUCKET = "__bucket"


class FirstStage(Protocol):
    """`time` is the SQL of the event time in ms (bigint), such as ``unix_millis(at)``; `moment` the
    event time as exact as the stream has it, such as ``at``, by which `last` finds a row."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def aggregation(self) -> Aggregation: ...

    @property
    def address(self) -> tuple[str, ...]:
        """The columns among `__partition` and `__hash` that the operator needs."""
        ...

    @property
    def late_rows_are_left_out(self) -> bool:
        """True if rows with time < watermark (`StepInput.before_ms`) must be filtered and counted
        as late before this stage: its output no longer shows which rows were late."""
        ...

    def group_columns(self, time: str) -> SqlColumns:
        """Columns to group by besides address and keys."""
        ...

    def aggregate_columns(self, time: str, moment: str) -> SqlColumns: ...

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The operator's input columns, in order."""
        ...

    def partials(
        self, rows: pa.Table, before_ms: int | None, moment: str = TIME_COLUMN
    ) -> tuple[pa.Table, int]:
        """Computes without a JVM the operator's input, and the number of late rows left out.

        Args:
            rows: `__partition`, `__hash`, `__time` and the stream's own columns.
            before_ms: `StepInput.before_ms`.
            moment: column with the event time as exact as the stream has it.

        Raises:
            BadRowError: a row has no event time.
        """
        ...


@dataclass(frozen=True)
class FramePartials:
    """Partials by key and frame, for `SlidingWindows`."""

    keys: tuple[str, ...]
    aggregation: Aggregation
    frames: Frames
    late_rows_are_left_out: bool = False
    address: tuple[str, ...] = (PARTITION_COLUMN,)

    def group_columns(self, time: str) -> SqlColumns:
        slide, offset = self.frames.slide_ms, self.frames.offset_ms
        end = f"{time} - pmod({time} - {offset}L, {slide}L) + {slide}L"
        return ((WINDOW_END_MS, end),)

    def aggregate_columns(self, time: str, moment: str) -> SqlColumns:
        return self.aggregation.spark_columns(moment)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (*self.address, *self.keys, WINDOW_END_MS, *_partial_names(self.aggregation))

    def partials(
        self, rows: pa.Table, before_ms: int | None, moment: str = TIME_COLUMN
    ) -> tuple[pa.Table, int]:
        times = event_times(rows)
        ends = times - (times - self.frames.offset_ms) % self.frames.slide_ms
        rows = rows.append_column(WINDOW_END_MS, pa.array(ends + self.frames.slide_ms, pa.int64()))
        group = [*self.address, *self.keys, WINDOW_END_MS]
        table = self.aggregation.first_stage(rows, rows.column(moment), group)
        return table.select(list(self.input_columns)), 0


@dataclass(frozen=True)
class SessionBuckets:
    """Partials by key and bucket of time, with first and last time.

    `SessionWindows` has buckets as wide as its gap, or one for each event time, `BoundedSessions`
    the latter.
    """

    keys: tuple[str, ...]
    aggregation: Aggregation
    width_ms: int
    """A bucket of 1 ms is late as a whole or not at all, so its late rows need not be filtered
    before: the operators drop and count them."""
    late_rows_are_left_out: bool = True
    address: tuple[str, ...] = (PARTITION_COLUMN, HASH_COLUMN)

    def group_columns(self, time: str) -> SqlColumns:
        return ((_BUCKET, f"floor({time} / {self.width_ms}L)"),)

    def aggregate_columns(self, time: str, moment: str) -> SqlColumns:
        span = ((FIRST_TIME_COLUMN, f"min({time})"), (TIME_COLUMN, f"max({time})"))
        return (*span, *self.aggregation.spark_columns(moment))

    @property
    def input_columns(self) -> tuple[str, ...]:
        span = (FIRST_TIME_COLUMN, TIME_COLUMN)
        return (*self.address, *self.keys, *span, *_partial_names(self.aggregation))

    def partials(
        self, rows: pa.Table, before_ms: int | None, moment: str = TIME_COLUMN
    ) -> tuple[pa.Table, int]:
        rows, late = drop_late(rows, before_ms)
        times = event_times(rows)
        group = [*self.address, *self.keys, _BUCKET]
        rows = rows.append_column(_BUCKET, pa.array(times // self.width_ms, pa.int64()))
        rows = rows.append_column(FIRST_TIME_COLUMN, pa.array(times))
        spans = ((FIRST_TIME_COLUMN, "min"), (TIME_COLUMN, "max"))
        table = self.aggregation.first_stage(rows, rows.column(moment), group, spans)
        return table.select(list(self.input_columns)), late


@dataclass(frozen=True)
class KeyPartials:
    """Partials by key, for `RollingAggregate`. Without event time, `time` is ``0L``."""

    keys: tuple[str, ...]
    aggregation: Aggregation
    late_rows_are_left_out: bool = False
    address: tuple[str, ...] = (PARTITION_COLUMN, HASH_COLUMN)

    def group_columns(self, time: str) -> SqlColumns:
        return ()

    def aggregate_columns(self, time: str, moment: str) -> SqlColumns:
        # Null if any row has no time: the operator refuses it, as `partials` does.
        newest = f"CASE WHEN count({time}) = count(1) THEN max({time}) END"
        return ((TIME_COLUMN, newest), *self.aggregation.spark_columns(moment))

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (*self.address, *self.keys, TIME_COLUMN, *_partial_names(self.aggregation))

    def partials(
        self, rows: pa.Table, before_ms: int | None, moment: str = TIME_COLUMN
    ) -> tuple[pa.Table, int]:
        event_times(rows)  # refuses rows without one
        group = [*self.address, *self.keys]
        table = self.aggregation.first_stage(
            rows, rows.column(moment), group, ((TIME_COLUMN, "max"),)
        )
        return table.select(list(self.input_columns)), 0


def _partial_names(aggregation: Aggregation) -> tuple[str, ...]:
    return (*(name for name, _ in aggregation.partials), ROW_COUNT)
