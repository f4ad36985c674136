"""Stages that run users' functions and processors, with a state per key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, overload

from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.pipeline.checks import state_format_of, time_kept
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Node
from dagster_jet.pipeline.point import Point
from dagster_jet.pipeline.stateful import ProcessorNode
from dagster_jet.pipeline.stateful_map import stateful_map_node
from dagster_jet.pipeline.user_functions import (
    OnError,
    OnEvict,
    OnEvictTable,
    OnTimer,
    RowFunction,
    RowOrder,
    S,
    StateFormatName,
    TableFunction,
    TimerTime,
)

if TYPE_CHECKING:
    from dagster_jet.dag import Processor

StageT = TypeVar("StageT", bound=Point)
"""Type of a stage without late rows and dead letters."""
LateT = TypeVar("LateT", bound=Point)
DeadT = TypeVar("DeadT", bound=Point)
"""Type of a stage with dead letters."""
LateDeadT = TypeVar("LateDeadT", bound=Point)
K = TypeVar("K", bound=Point)


class WithFunctions(Point, Generic[StageT, LateT, DeadT, LateDeadT]):
    """A stream with or without keys, to which functions can be applied."""

    _keys: tuple[str, ...] = ()

    def _after(self, node: Node, kind: type[K], time: EventTime | None) -> K:
        """Adds a node and returns the stage after it."""
        return kind(self._builder, self._builder.add(node).name, time)

    def _kind(self, *, can_be_late: bool, keeps_dead_letters: bool) -> type[Any]:
        """Returns the class of the stage after a function."""
        raise NotImplementedError

    # The first overload that fits is taken: arrival without a time to live, before any other order.

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        order: Literal["arrival"] | None = None,
        on_timer: OnTimer[S],
        timers: Literal["processing time"],
        state_format: StateFormatName = "plain",
    ) -> StageT: ...

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
    ) -> StageT: ...

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        order: RowOrder | None = None,
        on_evict: OnEvict[S] | None = None,
        on_timer: OnTimer[S] | None = None,
        timers: Literal["event time"] = "event time",
        on_error: Literal["fail"] = "fail",
        state_format: StateFormatName = "plain",
    ) -> LateT: ...

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
    ) -> DeadT: ...

    @overload
    def map_stateful(
        self,
        function: RowFunction[S],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        order: RowOrder | None = None,
        on_evict: OnEvict[S] | None = None,
        on_error: Literal["dead-letter"],
        state_format: StateFormatName = "plain",
    ) -> LateDeadT: ...

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
    ) -> StageT: ...

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
        order: RowOrder | None = None,
        on_evict: OnEvictTable | None = None,
    ) -> LateT: ...

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
        on_timer: Callable[..., Any] | None = None,
        timers: TimerTime = "event time",
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
                the row as a dict; returns a row, an iterable of at most ten million rows, or None.
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
            on_timer: called with the key's state, the key, and the time in ms since 1970, when
                event time has passed a timer that `state.set_timer(time, name)` has set.
                `state.timer` is its name. It may set timers, and return rows. At the end of the
                input all timers are called. Not with `ttl`, in batches, with dead letters, or in
                order of arrival.
            timers: "processing time": timers follow the wall clock (`state.now_ms`) instead of
                event time. They are called within about a second of their time, also while no
                rows come, and after a restart if they became due meanwhile; results depend on when
                epochs run. Rows come in order of arrival. At the end of the input timers that are
                not due are not called.
            on_error: treatment of a row for which `function` raises, or returns rows that do not
                fit `output_schema`. "fail": the job fails, and the error names the row.
                "dead-letter": the row goes to the sink of `dead_letter_to`, which must follow, and
                the key's state stays as before the row. `function` may then be called twice with a
                row, so it must not have side effects.
            state_format: format of saved states. "plain": numbers, text, times, and lists, tuples,
                dicts and sets of them (docs/operators.md); other values fail the job when they are
                first saved. "pickle": anything that can be pickled. Then anyone who can write to a
                member of the store can run code on the executors.
            in_batches: calls `function(states, rows)` once per epoch and shard, with Arrow tables.
                It returns the results and the changed states, as tables or None.
            state_schema: DDL of the columns of a state. With `in_batches` only, and needed there.

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
        if order is None and timers == "processing time":
            order = "arrival"
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
            on_timer=on_timer,
            timers=timers,
            keeps_dead_letters=on_error == "dead-letter",
            state_format=state_format_of(self, name, state_format),
            in_batches=in_batches,
            state_schema=state_schema,
        )
        can_be_late = ttl is not None or order != "arrival"
        kind = self._kind(can_be_late=can_be_late, keeps_dead_letters=on_error == "dead-letter")
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
    ) -> LateT:
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
        kind: type[LateT] = self._kind(can_be_late=True, keeps_dead_letters=False)
        return self._after(node, kind, time_kept(time, output_schema))
