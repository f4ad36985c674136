"""Builds the node of `map_stateful`, in one of its two forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.stateful import StatefulMapInBatchesNode, StatefulMapNode
from dagster_jet.pipeline.user_functions import TimerTime


def stateful_map_node(
    job: str,
    name: str,
    upstream: str,
    keys: tuple[str, ...],
    function: Callable[..., Any],
    *,
    create: Callable[[], Any] | None,
    output_schema: str,
    ttl_ms: int | None,
    time: EventTime | None,
    in_event_order: bool,
    on_evict: Callable[..., Any] | None,
    on_timer: Callable[..., Any] | None,
    timers: TimerTime,
    keeps_dead_letters: bool,
    state_format: StateFormat,
    in_batches: bool,
    state_schema: str | None,
) -> StatefulMapNode | StatefulMapInBatchesNode:
    """
    Raises:
        PipelineError: an option contradicts another.
    """

    def refusal(message: str, cure: str) -> PipelineError:
        return PipelineError(message, job=job, stage=name, cure=cure)

    if on_evict is not None and ttl_ms is None:
        raise refusal(
            "on_evict would never be called: without a ttl no state expires.",
            "Give a ttl, or leave on_evict out.",
        )
    if on_timer is not None:
        _check_timers(refusal, timers, in_event_order, {
            "ttl": ttl_ms is not None, 'on_error="dead-letter"': keeps_dead_letters,
            "in_batches=True": in_batches,
        })  # fmt: skip
    elif timers != "event time":
        raise refusal(
            f"timers={timers!r} without on_timer: no timer would be called.",
            "Give a function on_timer=, or leave timers out.",
        )
    if not in_batches:
        if state_schema is not None:
            raise refusal(
                "state_schema is only valid with in_batches=True: a function that is called row "
                "by row keeps its state as a Python value.",
                "Set in_batches=True, or leave state_schema out.",
            )
        if create is None:
            raise refusal(
                "create is missing: it makes the state of a new key.",
                "Give a function, for example create=int.",
            )
        return StatefulMapNode(
            name, (upstream,), keys, function, create, on_evict, ttl_ms, output_schema, time,
            in_event_order, keeps_dead_letters, state_format, on_timer,
            timers=timers,
        )  # fmt: skip
    if keeps_dead_letters:
        raise refusal(
            'on_error="dead-letter" is not available with in_batches=True: the function gets '
            "many rows in one call, and an error does not say which row caused it.",
            "Filter bad rows in the function or before it, or leave in_batches out.",
        )
    if create is not None or state_format is not StateFormat.PLAIN:
        raise refusal(
            f"{'create' if create is not None else 'state_format'} is not available with "
            "in_batches=True: a state consists of the columns of state_schema, which are null "
            "for a new key.",
            "Leave it out.",
        )
    if state_schema is None or not state_schema.strip():
        raise refusal(
            "in_batches=True needs a state_schema: a state is kept as columns.",
            'Name them, for example state_schema="total double, n bigint".',
        )
    return StatefulMapInBatchesNode(
        name,
        (upstream,),
        keys,
        function,
        state_schema,
        on_evict,
        ttl_ms,
        output_schema,
        time,
        in_event_order,
    )


def _check_timers(
    refusal: Callable[[str, str], PipelineError],
    timers: TimerTime,
    in_event_order: bool,
    others: Mapping[str, bool],
) -> None:
    """
    Args:
        others: options that on_timer excludes, and whether they are given.
    """
    if timers not in get_args(TimerTime):
        raise refusal(f"timers={timers!r} is unknown.", 'Use "event time" or "processing time".')
    if timers == "processing time":
        if in_event_order:
            raise refusal(
                'order="event time" with timers="processing time": rows would wait for the '
                "watermark while timers follow the clock.",
                "Leave order out; the rows then come in order of arrival.",
            )
    elif not in_event_order:
        raise refusal(
            "on_timer needs rows in order of event time: otherwise its calls depend on epochs.",
            "Call with_timestamps() on the source, and leave order out; or let timers follow the "
            'wall clock: timers="processing time".',
        )
    for option, is_given in others.items():
        if is_given:
            raise refusal(
                f"on_timer is not available with {option}.",
                "Leave one of them out; on_timer may call state.clear().",
            )
