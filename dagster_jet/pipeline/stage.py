"""Stages of a pipeline: each kind has the methods that it supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args, overload

from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.core.function_name import class_name
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.aggregates import Aggregate
from dagster_jet.pipeline.builder import GraphBuilder
from dagster_jet.pipeline.checks import (
    check_aggregates,
    columns_of,
    refuse_twice,
)
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Node
from dagster_jet.pipeline.joins import Joins
from dagster_jet.pipeline.outputs import DeadLetters, JoinedLateRows, LateRows, WithSinks
from dagster_jet.pipeline.over_rows import OverRows
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    CountWindowNode,
    DeduplicateNode,
    RollingNode,
)
from dagster_jet.pipeline.stateless import Stateless
from dagster_jet.pipeline.user_functions import (
    Keep,
    RowOrder,
)
from dagster_jet.pipeline.windows import CountWindow, SessionWindow, Window
from dagster_jet.pipeline.with_timestamps import WithTimestamps

WINDOW_START = "window_start"
WINDOW_END = "window_end"
IS_EARLY = "is_early"
CORRECTION = "correction"


class Stateful(OverRows["Stage", "LateStage", "DeadLetterStage", "LateDeadLetterStage"]):
    """A stream with or without keys, and the operations that keep a state per key."""

    def window(
        self,
        window: Window | CountWindow,
        *,
        early_results: Duration | None = None,
        allowed_lateness: Duration | None = None,
    ) -> WindowedStage:
        """Divides the stream into windows, of each key if it is grouped.

        Args:
            window: from `dagster_jet.windows`.
            early_results: also emit the current results of open windows, at about this interval of
                wall-clock time. Rows get a column `is_early`. The guarantee does not cover early
                rows: after a restart their times and values differ. They go to sinks, also through
                transforms; stateful stages after the window receive final rows only.
            allowed_lateness: a window still takes rows until the watermark is so far past its end.
                An epoch with such rows emits their windows again, as *corrections*: the result of
                all rows so far. Rows get a column `correction`: 0 at the end of the window, greater
                in each later result. They go to sinks, also through transforms, for example to
                `mode="upsert"` with the keys and `window_end` as key; stateful stages after the
                window are refused. Not for sessions.

        `windows.count` has neither: its windows are no times, and each is emitted once.

        Raises:
            PipelineError: the stream has no event time, or `allowed_lateness` is given for sessions
                or for a stream with the time of reading, where no row is late.
            ConfigurationError: a duration is negative or cannot be read.

        Example:
            >>> windowed = rows.group_by("origin").window(
            ...     windows.tumbling("1 hour"), early_results="5 seconds"
            ... )
        """
        if isinstance(window, CountWindow):
            if early_results is not None or allowed_lateness is not None:
                wrong = "early_results= and allowed_lateness= are for windows in event time."
                raise self._refusal(wrong, "Leave them out: a window by count is emitted once.")
            return WindowedStage(self, window, None, None)
        self._event_time(self._node, "a window")
        if not isinstance(window, Window):
            raise self._refusal(
                f"a {class_name(window)} is not a window.", 'Write windows.tumbling("1 hour").'
            )
        every = None if early_results is None else to_ms(early_results, "early_results")
        lateness = None if allowed_lateness is None else self._lateness(window, allowed_lateness)
        return WindowedStage(self, window, every, lateness)

    def _lateness(self, window: Window, allowed_lateness: Duration) -> int:
        if isinstance(window, SessionWindow):
            wrong = "allowed_lateness= is not for sessions: a late row may join two of them."
            cure = "Use a longer allowed_lag= in with_timestamps(), or a tumbling window."
            raise self._refusal(wrong, cure)
        if self._is_read_just_now([self._node]):
            wrong = "allowed_lateness= has no effect: with the time of reading no row is late."
            raise self._refusal(wrong, "Leave it out, or use with_timestamps().")
        return to_ms(allowed_lateness, "allowed_lateness")

    @overload
    def rolling_aggregate(
        self, *, name: str, ttl: None = None, **aggregates: Aggregate
    ) -> Stage: ...

    @overload
    def rolling_aggregate(
        self, *, name: str, ttl: Duration, **aggregates: Aggregate
    ) -> LateStage: ...

    def rolling_aggregate(
        self, *, name: str, ttl: Duration | None = None, **aggregates: Aggregate
    ) -> Stage:
        """Emits one row with the totals so far for each key with rows in an epoch.

        A stream that is not grouped has totals over all rows. Columns: keys, the newest event time
        of the key (if the stream has event time), the aggregates.

        Args:
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            ttl: the totals of a key begin anew with a row that comes more than this after the one
                before it, in event time, however rows are divided into epochs and in whatever order
                they arrive. Totals are removed when the watermark is more than this past the last
                row. Rows behind the watermark are late. None: totals are over all rows, and stay.
            aggregates: aggregates from `dagster_jet.aggregates`, by name of the result column.

        Raises:
            PipelineError: no aggregate, or duplicate column names, or a `ttl` lacks event time.
            ConfigurationError: `ttl` is negative or cannot be read.

        Example:
            >>> totals = rows.group_by("origin").rolling_aggregate(
            ...     name="totals", ttl="1 day", n=agg.count()
            ... )
        """
        ttl_ms = None if ttl is None else to_ms(ttl, "ttl")
        if ttl is not None:
            self._event_time(name, "a ttl")
        time = () if self._time is None else (self._time.column,)
        check_aggregates(self, name, (*self._keys, *time), aggregates)
        node = RollingNode(
            name, (self._node,), self._keys, tuple(aggregates.items()), self._time, ttl_ms
        )
        kind = self._kind(can_be_late=ttl is not None, keeps_dead_letters=False)
        return self._after(node, kind, self._time)

    def _kind(self, *, can_be_late: bool, keeps_dead_letters: bool) -> type[Stage]:
        kinds: dict[tuple[bool, bool], type[Stage]] = {
            (False, False): Stage,
            (True, False): LateStage,
            (False, True): DeadLetterStage,
            (True, True): LateDeadLetterStage,
        }
        return kinds[can_be_late, keeps_dead_letters]


class Stage(WithTimestamps, Stateless["Stage"], Joins["Stage", "JoinedStage"], Stateful, WithSinks):
    """A stream at one point of the pipeline."""

    def _append(self, node: Node) -> Stage:
        return self._after(node, Stage, self._time)

    def _joined(self, node: Node, time: EventTime | None) -> JoinedStage:
        return self._after(node, JoinedStage, time)

    def group_by(self, *keys: str) -> KeyedStage:
        """Groups the stream by key columns; the next stage has a state per key.

        Raises:
            PipelineError: no key, a duplicate key, or one that is no name.

        Example:
            >>> by_origin = rows.group_by("origin")
        """
        if not keys:
            raise PipelineError("group_by() needs at least one key.", job=self._builder.job)
        for key in keys:
            if not isinstance(key, str):
                raise self._refusal(
                    f"group_by() takes names of columns, not a {class_name(key)}.",
                    'Write group_by("origin", "flight"); select() computes other keys before.',
                )
        refuse_twice(self, self._node, keys)
        return KeyedStage(self._builder, self._node, self._time, keys)

    def deduplicate(
        self,
        *,
        within: Duration,
        name: str,
        on: str | Sequence[str] | None = None,
        keep: Keep = "first",
        order: RowOrder | None = None,
    ) -> LateStage:
        """Passes one row of each key and drops its duplicates within a time.

        In order of event time, the first row of a key begins a group, and rows of the key at most
        `within` later belong to it. Rows are compared after the watermark has passed them, so
        results do not depend on how rows are divided into epochs, and come later by the allowed
        lag. `order="arrival"` decides at once: a row is dropped if a passed row with its key is at
        most `within` away. Rows behind the watermark are late.

        Args:
            within: distance in event time; also the time that keys are kept in state.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            on: key columns; by default all columns.
            keep: "first" passes the row that begins a group. "last" passes the last row of a group,
                once the watermark is more than `within` past the first; not in order of arrival.
            order: as in `map_stateful`. If all rows of a key within the time are equal, the order
                does not matter, and "arrival" passes them sooner.

        Raises:
            PipelineError: the stream has no event time, a column is named twice, or an option is
                not valid.
            ConfigurationError: `within` is negative or cannot be read.

        Example:
            >>> once = rows.deduplicate(within="1 day", on="flight", name="once")
        """
        keys = () if on is None else columns_of(on)
        return _deduplicated(self, keys, within, name, keep, order)


class SourceStage(DeadLetters, Stage):
    """The stream of a source; its bad rows can be written."""


class LateStage(LateRows, Stage):
    """A stream behind a stage for which rows can be late."""


class JoinedStage(JoinedLateRows, Stage):
    """A stream behind a join, each side of which can have late rows."""


class DeadLetterStage(DeadLetters, Stage):
    """A stream behind a function with `on_error="dead-letter"`."""


class LateDeadLetterStage(LateRows, DeadLetters, Stage):
    """A stream behind a function with late rows and `on_error="dead-letter"`."""


class KeyedStage(Stateful):
    """A stream grouped by key; the next stage has a state per key."""

    def __init__(
        self, builder: GraphBuilder, node: str, time: EventTime | None, keys: tuple[str, ...]
    ) -> None:
        super().__init__(builder, node, time)
        self._keys = keys

    def deduplicate(
        self,
        *,
        within: Duration,
        name: str,
        keep: Keep = "first",
        order: RowOrder | None = None,
    ) -> LateStage:
        """Passes one row of each key: `Stage.deduplicate` on these keys.

        Example:
            >>> first = rows.group_by("flight").deduplicate(within="1 day", name="first")
        """
        return _deduplicated(self, self._keys, within, name, keep, order)


class WindowedStage:
    """A stream divided into windows; `aggregate` defines the results of each window."""

    def __init__(
        self,
        stage: Stateful,
        window: Window | CountWindow,
        early_results_ms: int | None,
        allowed_lateness_ms: int | None,
    ) -> None:
        self._stage, self._window, self._early_results_ms = stage, window, early_results_ms
        self._allowed_lateness_ms = allowed_lateness_ms

    def aggregate(self, *, name: str, **aggregates: Aggregate) -> LateStage:
        """Emits one row per key and window: keys, window_start, window_end, then the aggregates.

        The event time of a result is the last millisecond of its window, `window_end` minus one. So
        a daily window over hourly windows contains the hours of that day.

        Columns of a window by count: keys, the event time of its newest row (if the stream has
        event time), the aggregates. With `rest="emit"` this column is no event time for later
        stages.

        Args:
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            aggregates: aggregates from `dagster_jet.aggregates`, by name of the result column.

        Raises:
            PipelineError: no aggregate, or duplicate column names.

        Example:
            >>> delays = rows.group_by("origin").window(windows.tumbling("1 hour")).aggregate(
            ...     n=agg.count(), worst=agg.max("delay"), name="hourly_delays"
            ... )
        """
        stage = self._stage
        if isinstance(self._window, CountWindow):
            return _counted(stage, self._window, name, aggregates)
        early = () if self._early_results_ms is None else (IS_EARLY,)
        corrected = () if self._allowed_lateness_ms is None else (CORRECTION,)
        own = (*stage._keys, WINDOW_START, WINDOW_END, *early, *corrected)
        check_aggregates(stage, name, own, aggregates)
        node = AggregateNode(
            name,
            (stage._node,),
            stage._keys,
            self._window,
            tuple(aggregates.items()),
            stage._event_time(name),
            self._early_results_ms,
            self._allowed_lateness_ms,
        )
        return stage._after(node, LateStage, EventTime(WINDOW_END, is_window_end=True))


def _counted(
    stage: Stateful, window: CountWindow, name: str, aggregates: Mapping[str, Aggregate]
) -> LateStage:
    time = stage._time
    check_aggregates(stage, name, (*stage._keys, *([time.column] if time else [])), aggregates)
    in_event_order = stage._in_event_order(window.order, name)
    node = CountWindowNode(
        name, (stage._node,), stage._keys, window.size, tuple(aggregates.items()), time,
        in_event_order, None if window.slide == window.size else window.slide, window.rest,
    )  # fmt: skip
    # Windows of fewer rows come at the end of the input, when the watermark is past them.
    return stage._after(node, LateStage, None if window.rest == "emit" else time)


def _deduplicated(
    stage: Stateful,
    keys: tuple[str, ...],
    within: Duration,
    name: str,
    keep: Keep,
    order: RowOrder | None,
) -> LateStage:
    refuse_twice(stage, name, keys)
    time = stage._event_time(name)
    in_event_order = stage._in_event_order(order, name)
    if keep not in get_args(Keep):
        unknown = f"keep={keep!r} is unknown."
        raise stage._refusal(unknown, 'Use "first" or "last".', stage=name)
    if keep == "last" and not in_event_order:
        wrong = 'keep="last" needs rows in order of event time.'
        cure = 'Use order="event time", or keep="first".'
        raise stage._refusal(wrong, cure, stage=name)
    within_ms = to_ms(within, "within")
    node = DeduplicateNode(name, (stage._node,), keys, within_ms, time, in_event_order, keep)
    return stage._after(node, LateStage, time)
