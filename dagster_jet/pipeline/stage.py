"""Stages of a pipeline: each kind has the methods that it supports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.aggregates import Aggregate
from dagster_jet.pipeline.builder import GraphBuilder
from dagster_jet.pipeline.checks import (
    check_aggregates,
    columns_of,
    refuse_twice,
    state_format_of,
    time_kept,
)
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Node
from dagster_jet.pipeline.joins import Joins
from dagster_jet.pipeline.outputs import DeadLetters, JoinedLateRows, LateRows, WithSinks
from dagster_jet.pipeline.point import Point
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    DeduplicateNode,
    ProcessorNode,
    RollingNode,
)
from dagster_jet.pipeline.stateful_map import stateful_map_node
from dagster_jet.pipeline.stateless import Stateless
from dagster_jet.pipeline.user_functions import (
    Keep,
    OnError,
    OnEvict,
    OnEvictTable,
    RowFunction,
    RowOrder,
    S,
    StateFormatName,
    TableFunction,
)
from dagster_jet.pipeline.windows import Window
from dagster_jet.pipeline.with_timestamps import WithTimestamps

if TYPE_CHECKING:
    from dagster_jet.dag import Processor

WINDOW_START = "window_start"
WINDOW_END = "window_end"
IS_EARLY = "is_early"

K = TypeVar("K", bound="Stage")


class Stateful(Point):
    """A stream with or without keys, and the operations that keep a state per key."""

    _keys: tuple[str, ...] = ()

    def _after(self, node: Node, kind: type[K], time: EventTime | None) -> K:
        """Adds a node and returns the stage after it."""
        return kind(self._builder, self._builder.add(node).name, time)

    def window(self, window: Window, *, early_results: Duration | None = None) -> WindowedStage:
        """Divides the stream into windows, of each key if it is grouped.

        Args:
            window: from `dagster_jet.windows`.
            early_results: also emit the current results of open windows, at about this interval of
                wall-clock time. Rows get a column `is_early`. The guarantee does not cover early
                rows: after a restart their times and values differ. They go to sinks, also through
                transforms; stateful stages after the window receive final rows only.

        Raises:
            PipelineError: the stream has no event time.
            ConfigurationError: `early_results` is negative or cannot be read.

        Example:
            >>> windowed = rows.group_by("origin").window(
            ...     windows.tumbling("1 hour"), early_results="5 seconds"
            ... )
        """
        self._event_time(self._node, "a window")
        every = None if early_results is None else to_ms(early_results, "early_results")
        return WindowedStage(self, window, every)

    def rolling_aggregate(self, *, name: str, **aggregates: Aggregate) -> Stage:
        """Emits one row with the totals so far for each key with rows in an epoch.

        A stream that is not grouped has totals over all rows. Columns: keys, the newest event time
        of the key (if the stream has event time), the aggregates.

        Args:
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            aggregates: aggregates from `dagster_jet.aggregates`, by name of the result column.

        Raises:
            PipelineError: no aggregate, or duplicate column names.

        Example:
            >>> totals = rows.group_by("origin").rolling_aggregate(name="totals", n=agg.count())
        """
        time = () if self._time is None else (self._time.column,)
        check_aggregates(self, name, (*self._keys, *time), aggregates)
        node = RollingNode(name, (self._node,), self._keys, tuple(aggregates.items()), self._time)
        return self._after(node, Stage, self._time)

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        order: Literal["event time"] | None = None,
        on_evict: OnEvict[S] | None = None,
        on_error: Literal["fail"] = "fail",
        state_format: StateFormatName = "plain",
    ) -> LateStage: ...

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: None = None,
        order: Literal["arrival"],
        on_error: Literal["fail"] = "fail",
        state_format: StateFormatName = "plain",
    ) -> Stage: ...

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration,
        order: Literal["arrival"],
        on_evict: OnEvict[S] | None = None,
        on_error: Literal["fail"] = "fail",
        state_format: StateFormatName = "plain",
    ) -> LateStage: ...

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        order: Literal["event time"] | None = None,
        on_evict: OnEvict[S] | None = None,
        on_error: Literal["dead-letter"],
        state_format: StateFormatName = "plain",
    ) -> LateDeadLetterStage: ...

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: None = None,
        order: Literal["arrival"],
        on_error: Literal["dead-letter"],
        state_format: StateFormatName = "plain",
    ) -> DeadLetterStage: ...

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration,
        order: Literal["arrival"],
        on_evict: OnEvict[S] | None = None,
        on_error: Literal["dead-letter"],
        state_format: StateFormatName = "plain",
    ) -> LateDeadLetterStage: ...

    @overload
    def map_stateful(
        self,
        function: TableFunction,
        *,
        in_batches: Literal[True],
        state_schema: str,
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        order: Literal["event time"] | None = None,
        on_evict: OnEvictTable | None = None,
    ) -> LateStage: ...

    @overload
    def map_stateful(
        self,
        function: TableFunction,
        *,
        in_batches: Literal[True],
        state_schema: str,
        output_schema: str,
        name: str,
        ttl: None = None,
        order: Literal["arrival"],
    ) -> Stage: ...

    @overload
    def map_stateful(
        self,
        function: TableFunction,
        *,
        in_batches: Literal[True],
        state_schema: str,
        output_schema: str,
        name: str,
        ttl: Duration,
        order: Literal["arrival"],
        on_evict: OnEvictTable | None = None,
    ) -> LateStage: ...

    def map_stateful(
        self,
        function: Callable[..., Any],
        *,
        create: Callable[[], Any] | None = None,
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        order: RowOrder | None = None,
        on_evict: Callable[..., Any] | None = None,
        on_error: OnError = "fail",
        state_format: StateFormatName = "plain",
        in_batches: bool = False,
        state_schema: str | None = None,
    ) -> Any:
        """Calls `function(state, row)` for every row, with the state of the row's key.

        A stream that is not grouped has a single state. The rows of one key are passed in order of
        event time, after the watermark has passed them. So the results do not depend on how rows
        are divided into epochs, and they come later by the allowed lag. `order="arrival"` passes
        rows at once.

        Args:
            function: called with the key's `dagster_jet.State` (`state.value`, `state.clear()`) and
                the row as a dict; returns a row, an iterable of rows, or None.
            create: returns the state of a new key. Not with `in_batches`.
            output_schema: DDL of the rows that `function` returns ("key string, n bigint"). `*`
                stands for the columns of the stream ("*, n bigint").
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            ttl: a state expires when the watermark is more than this past its last touch, and
                before a row of its key whose event time is.
            order: None: "event time" if rows bring their event time, else "arrival". Rows of one
                event time are in order of arrival. The rows of one source partition arrive in its
                order; those of different partitions arrive in no defined order.
            on_evict: called with the key, its expired state, and the first watermark, in ms since
                1970, under which the state has expired; may return rows, too.
            on_error: treatment of a row for which `function` raises, or returns rows that do not
                fit `output_schema`. "fail": the job fails, and the error names the row.
                "dead-letter": the row goes to the sink of `dead_letter_to`, which must follow, and
                the key's state stays as before the row. `function` may then be called twice with a
                row, so it must not have side effects.
            state_format: format of saved states. "plain": numbers, text, times, and lists, tuples,
                dicts and sets of them (docs/operators.md); other values fail the job when they are
                first saved. "pickle": anything that can be pickled. Then anyone who can write to a
                member of the store can run code on the executors.

        Raises:
            PipelineError: an option is not valid or contradicts another, or a `ttl` lacks event
                time.
            ConfigurationError: `ttl` is negative or cannot be read.

        Example:
            >>> def add(state, row):
            ...     state.value += row["delay"]
            ...     return {"origin": row["origin"], "total": state.value}
            >>> sums = rows.group_by("origin").map_stateful(
            ...     add, create=float, output_schema="origin string, total double", name="sums"
            ... )
        """
        if on_error not in get_args(OnError):
            unknown = f"on_error={on_error!r} is unknown."
            raise self._refusal(unknown, 'Use "fail" or "dead-letter".', stage=name)
        in_event_order = self._in_event_order(order, name)
        time = self._time if ttl is None else self._event_time(name)
        node = stateful_map_node(
            self._builder.job,
            name,
            self._node,
            self._keys,
            function,
            create=create,
            output_schema=output_schema,
            ttl_ms=None if ttl is None else to_ms(ttl, "ttl"),
            time=time,
            in_event_order=in_event_order,
            on_evict=on_evict,
            keeps_dead_letters=on_error == "dead-letter",
            state_format=state_format_of(self, name, state_format),
            in_batches=in_batches,
            state_schema=state_schema,
        )
        kinds = {
            (False, False): Stage,
            (True, False): LateStage,
            (False, True): DeadLetterStage,
            (True, True): LateDeadLetterStage,
        }
        can_be_late = ttl is not None or order != "arrival"
        kind = kinds[can_be_late, on_error == "dead-letter"]
        return self._after(node, kind, time_kept(time, output_schema))

    def _in_event_order(self, order: RowOrder | None, name: str) -> bool:
        """Whether a stage gets its rows in order of event time."""
        if order not in (None, *get_args(RowOrder)):
            unknown = f"order={order!r} is unknown."
            raise self._refusal(unknown, 'Use "event time" or "arrival".', stage=name)
        if order is not None:
            return order == "event time" and self._event_time(name) is not None
        return self._time is not None and not self._is_read_just_now([self._node])

    def apply_processor(
        self,
        supplier: Callable[[], Processor],
        *,
        output_schema: str,
        name: str,
        order: RowOrder | None = None,
        in_batches: bool = False,
        output_delay: Duration = "0 ms",
        state_format: StateFormatName = "plain",
    ) -> LateStage:
        """Passes the rows to processors (`dagster_jet.dag.Processor`), one per shard.

        All rows of one key go to the same processor; a stream that is not grouped has one
        processor. Rows are passed in order of event time, after the watermark has passed them, and
        before the processor gets that watermark. `order="arrival"` passes them at once.

        If the processor overrides `try_process`, the method is called in every epoch, and there is
        an epoch every second even without input.

        An instance exists for one epoch; the next instance has only the saved state. Every epoch
        reads and writes the whole saved state, so use `map_stateful` or aggregates for large state.

        If the processor commits in two phases, every epoch of the job ends in a snapshot,
        regardless of `snapshot_interval`, and a new instance that is restored from the snapshot
        commits. See docs/operators.md.

        Args:
            supplier: returns a new instance, for example the class itself; must be picklable.
            output_schema: DDL of the rows that the processor emits, as in `map_stateful`.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            order: as in `map_stateful`.
            in_batches: input and output items are Arrow record batches instead of dicts.
            output_delay: largest lag of an emitted row's event time behind the watermark; the
                watermark of the next stages is delayed by it. A processor that holds rows back, to
                sort or to pair them, needs it: older rows are late for the next stages, and
                dropped.
            state_format: format of the keys and values of saved entries, as in `map_stateful`.

        Raises:
            PipelineError: an option is not valid. When the job starts: the type of a key is not
                boolean, number (except decimal), text, binary, date or timestamp.
            ConfigurationError: `output_delay` is negative or cannot be read.

        Example:
            >>> paired = orders.group_by("order_id").apply_processor(
            ...     Pairs, output_schema="order_id string, at timestamp", name="pairs"
            ... )
        """
        time, delay_ms = self._time, to_ms(output_delay, "output_delay")
        saved_as = state_format_of(self, name, state_format)
        node = ProcessorNode(
            name,
            (self._node,),
            self._keys,
            supplier,
            output_schema,
            time,
            self._in_event_order(order, name),
            in_batches,
            delay_ms,
            saved_as,
        )
        return self._after(node, LateStage, time_kept(time, output_schema))


class Stage(WithTimestamps, Stateless["Stage"], Joins["Stage", "JoinedStage"], Stateful, WithSinks):
    """A stream at one point of the pipeline."""

    def _append(self, node: Node) -> Stage:
        return self._after(node, Stage, self._time)

    def _joined(self, node: Node, time: EventTime | None) -> JoinedStage:
        return self._after(node, JoinedStage, time)

    def group_by(self, *keys: str) -> KeyedStage:
        """Groups the stream by key columns; the next stage has a state per key.

        Raises:
            PipelineError: no key, or a duplicate key.

        Example:
            >>> by_origin = rows.group_by("origin")
        """
        if not keys:
            raise PipelineError("group_by() needs at least one key.", job=self._builder.job)
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

    def __init__(self, stage: Stateful, window: Window, early_results_ms: int | None) -> None:
        self._stage, self._window, self._early_results_ms = stage, window, early_results_ms

    def aggregate(self, *, name: str, **aggregates: Aggregate) -> LateStage:
        """Emits one row per key and window: keys, window_start, window_end, then the aggregates.

        The event time of a result is the last millisecond of its window, `window_end` minus one. So
        a daily window over hourly windows contains the hours of that day.

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
        early = () if self._early_results_ms is None else (IS_EARLY,)
        check_aggregates(stage, name, (*stage._keys, WINDOW_START, WINDOW_END, *early), aggregates)
        node = AggregateNode(
            name,
            (stage._node,),
            stage._keys,
            self._window,
            tuple(aggregates.items()),
            stage._event_time(name),
            self._early_results_ms,
        )
        return stage._after(node, LateStage, EventTime(WINDOW_END, is_window_end=True))


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
