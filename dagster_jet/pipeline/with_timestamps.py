"""Event time of a stream: from a column, or by the clock when a row is read."""

from __future__ import annotations

from typing import TypeVar

from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Timestamps, TimestampsNode
from dagster_jet.pipeline.point import Point

_S = TypeVar("_S", bound="WithTimestamps")


class WithTimestamps(Point):
    """A stage whose rows can be given event time."""

    def with_timestamps(
        self: _S,
        column: str,
        *,
        allowed_lag: Duration = "0 ms",
        idle_timeout: Duration = "60 seconds",
        max_lull: Duration = "0 ms",
        max_ahead: Duration | None = None,
    ) -> _S:
        """Defines the event-time column: a timestamp, or milliseconds since 1970 as long.

        Args:
            column: must not be null; a row without event time is a bad row.
            allowed_lag: lag behind the newest event above which an event is late.
            idle_timeout: time without events after which a source, or a partition of it, is idle
                and no longer holds the watermark back; 0: never.
            max_lull: time without events after which the watermark of a source, or of a partition
                of it, follows the wall clock (unless it is idle), so that windows close without
                further events. Later events with older times are late. 0: never.
            max_ahead: a row whose event time is more than this ahead of the clock does not move the
                watermark, so that one wrong clock does not make all other rows late. The row goes
                on as all others do; its window closes when event time gets there, or at the end of
                the input. Such rows are counted (`rows_ahead` in `JobResult.counted`) and logged.
                The clock is the one of the epoch, rounded up by a quarter of `max_ahead`, or ten
                seconds. None: every row moves the watermark.

        Raises:
            ConfigurationError: a duration is negative or cannot be read; names the argument.
            PipelineError: the stream already has timestamps at this point.

        Example:
            >>> flights = source.with_timestamps("at", allowed_lag="5 minutes", max_ahead="1 hour")
        """
        timestamps = Timestamps(
            column,
            to_ms(allowed_lag, "allowed_lag"),
            to_ms(idle_timeout, "idle_timeout"),
            to_ms(max_lull, "max_lull"),
            max_ahead_ms=None if max_ahead is None else to_ms(max_ahead, "max_ahead"),
        )
        return self._timed(timestamps)

    def with_ingestion_timestamps(
        self: _S,
        *,
        column: str = "ingested_at",
        idle_timeout: Duration = "60 seconds",
        max_lull: Duration = "0 ms",
    ) -> _S:
        """Adds a column with the time of reading a row, by wall clock, as event time.

        All rows of an epoch have the same time, which never decreases, so no row is late. Rows that
        are read again after a crash get a new time: the guarantee covers the rows, not their times.
        Windows close when more rows arrive, or by `max_lull`.

        Args:
            column: name of the new timestamp column; the stream must not have it yet.
            idle_timeout: as in `with_timestamps`.
            max_lull: as in `with_timestamps`. With it the default `order` of later stages is
                "event time", because rows may be late; without it, "arrival". A stage keeps its
                saved state with `order="arrival"`.

        Raises:
            ConfigurationError: a duration is negative or cannot be read; names the argument.
            PipelineError: the stream already has timestamps at this point.

        Example:
            >>> read = untimed.with_ingestion_timestamps(max_lull="10 seconds")
        """
        timestamps = Timestamps(
            column,
            0,
            to_ms(idle_timeout, "idle_timeout"),
            to_ms(max_lull, "max_lull"),
            of_ingestion=True,
        )
        return self._timed(timestamps)

    def _timed(self: _S, timestamps: Timestamps) -> _S:
        name = f"{self._node}.timestamps"
        self._builder.add(TimestampsNode(name, (self._node,), timestamps))
        return type(self)(self._builder, name, EventTime(timestamps.column))
