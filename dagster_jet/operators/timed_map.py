"""Operator of `map_stateful` with `on_timer`: a stateful map whose keys have a timer in event time.

    def remind(state: State[int], key: dict, time_ms: int) -> dict:
        return {"order_id": key["order_id"], "open_since": state.value}

    InEventOrder(TimedMap("orders", ("order_id",), ..., ttl_ms=0, on_timer=remind))

The function sets the timer of its key (`State.set_timer`). `on_timer` is called before the first
row of the key whose time is later, or when the watermark is past the timer: in both cases between
the same two rows, so the results do not depend on how rows are divided into steps. At the end of
the input all timers are due, also those that `on_timer` sets itself.

Always in `InEventOrder`. Saved: as in `StatefulMap`, but the time of a key is that of its timer, by
which its row expires. A timer that is due is called in the step that expires the row, and this step
always writes a newer version of the key. So no older version comes back.

At-least-once: as `StatefulMap`.

Source: event-time timers of Flink's `KeyedProcessFunction`; Beam's `TimerSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import TIME_COLUMN, VERSION_COLUMN, StepInput
from dagster_jet.operators.stateful_map import STATE_COLUMN, StatefulMap
from dagster_jet.operators.touched_keys import NEVER_TOUCHED, TouchedKeys, is_up_to
from dagster_jet.operators.user.calls import OnTimer, Row, UserCalls
from dagster_jet.operators.user.python_rows import row_dicts
from dagster_jet.operators.user.state import NO_TIMER_MS, State

_TIMERS_AT_END_MAX = 10_000
"""Calls for one key at the end of the input, after which `on_timer` is taken to set a timer
always."""


@dataclass(frozen=True, kw_only=True)
class TimedMap(StatefulMap):
    """Operator with one input. `ttl_ms` is 0: a row expires when its timer is due."""

    on_timer: OnTimer
    """(state of the key, key columns, time of the timer in ms) -> as `function`."""

    @property
    def _is_called_without_rows(self) -> bool:
        return True

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        return merged.filter(merged.column(STATE_COLUMN).is_valid())

    def _lives(
        self,
        touched: TouchedKeys,
        saved_states: Sequence[bytes | None],
        calls: UserCalls,
        expired: int | None,
    ) -> Iterator[tuple[State[Any], int]]:
        """Calls both functions for the keys with rows; yields each key's state and timer."""
        rows = row_dicts(touched.rows.select(self.row_schema.names))
        keys = row_dicts(touched.firsts(np.arange(len(touched.starts))).select(self.keys))
        times = touched.times.tolist()
        spans = zip(touched.starts.tolist(), touched.stops.tolist(), strict=True)
        saved_timers = touched.saved_touches.tolist()
        for (start, stop), saved, timer in zip(spans, saved_states, saved_timers, strict=True):
            first = NO_TIMER_MS if timer == NEVER_TOUCHED else timer
            timers = _Timers(self, calls, next(keys, {}), first)
            function = timers.before_each(self.function, times[start:stop])
            state = calls.over_rows(function, self.create, saved, islice(rows, stop - start), start)
            timers.call_until(state, expired)
            yield state, timers.next_of(state)

    def _evict(self, untouched: pa.Table, calls: UserCalls, given: StepInput) -> pa.Table:
        """Calls `on_timer` for keys without rows in this step; returns their states."""
        until = self.expired_until(given.after_ms)
        due = untouched.filter(pa.array(is_up_to(event_times(untouched), until)))
        states: list[bytes | None] = []
        next_timers: list[int] = []
        each = zip(
            row_dicts(due.select(self.keys)) if self.keys else iter([{}] * due.num_rows),
            due.column(STATE_COLUMN).to_pylist(),
            event_times(due).tolist(),
            strict=True,
        )
        for key, saved, timer in each:
            timers, state = _Timers(self, calls, key, timer), State(calls.load(saved, None))
            timers.begin(state)
            timers.call_until(state, until)
            states.append(None if state.is_cleared else calls.save(state.value, None, key))
            next_timers.append(timers.next_of(state))
        own = {
            TIME_COLUMN: pa.array(next_timers, pa.int64()),
            VERSION_COLUMN: pa.array(np.full(due.num_rows, given.version)),
            STATE_COLUMN: pa.array(states, pa.binary()),
        }
        columns = [own.get(name, due.column(name)) for name in self.state_schema.names]
        return pa.Table.from_arrays(columns, schema=self.state_schema)


@dataclass
class _Timers:
    """The timer of one key, while its rows go by."""

    operator: TimedMap
    calls: UserCalls
    key: Row
    first: int
    """Timer of the saved state."""
    now: int = NEVER_TOUCHED
    """Time of the last call."""

    def begin(self, state: State[Any]) -> None:
        state.timer_ms = self.first

    def before_each(self, function: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
        """The function, which calls `on_timer` before a row with a later time."""
        coming = iter(times)

        @wraps(function)
        def call(state: State[Any], row: Row) -> Any:
            if state.timer_ms is None:
                self.begin(state)
            time = next(coming)
            self.call_until(state, time - 1)
            self.now = time
            if state.is_cleared:
                state.renew(self.operator.create)
            return function(state, row)

        return call

    def next_of(self, state: State[Any]) -> int:
        """The time of the timer; one that is over counts as the time of the last call."""
        assert state.timer_ms is not None
        return max(state.timer_ms, self.now)

    def call_until(self, state: State[Any], until_ms: int | None) -> None:
        """Calls `on_timer` as often as the timer is due."""
        called = 0
        while until_ms is not None and (time := self.next_of(state)) <= until_ms:
            if time == self.now and called:
                raise self.calls.timer_error(
                    f"on_timer at {time} ms has set a timer that is not later.",
                    self.key,
                    "Set a later time than time_ms, or none.",
                )
            called += 1
            if called > _TIMERS_AT_END_MAX and until_ms == FINAL_WATERMARK_MS - 1:
                raise self.calls.timer_error(
                    f"on_timer has set a timer {_TIMERS_AT_END_MAX} times after the last row of "
                    "the input, whose end calls all timers.",
                    self.key,
                    "Set a bounded number of timers after a row: count them in the state.",
                )
            state.timer_ms, self.now = NO_TIMER_MS, time
            self.calls.on_timer(self.operator.on_timer, state, self.key, time)
