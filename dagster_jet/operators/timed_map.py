"""Operator of `map_stateful` with `on_timer`: a stateful map whose keys have timers.

    def remind(state: State[int], key: dict, time_ms: int) -> dict:
        return {"order_id": key["order_id"], "open_since": state.value}

    InEventOrder(TimedMap("orders", ("order_id",), ..., ttl_ms=0, on_timer=remind))

The function sets timers of its key, by name (`State.set_timer`). `on_timer` is called before the
first row of the key whose time is later, or when the watermark is past the timer: in both cases
between the same two rows, so the results do not depend on how rows are divided into steps. Timers
that are due are called by time, those of one time by name. At the end of the input all timers are
due, also those that `on_timer` sets itself.

In processing time the step's watermark is the clock of the epoch (`StageInput.clock_ms`), and every
row has this time: timers that are due are called before the epoch's rows of the key. The rows come
in order of arrival and none is late. At the end of the input only timers that are due are called.

In event time always in `InEventOrder`. Saved: as in `StatefulMap`, but the time of a key is that
of its next timer, by which its row expires. Timers with names are saved in front of the state
(`saved_timers.py`). A timer that is due is called in the step that expires the row, and this step
always writes a newer version of the key. So no older version comes back.

At-least-once: as `StatefulMap`. In processing time an epoch that is repeated has a later clock.

Source: timers of Flink's `KeyedProcessFunction`; Beam's `TimerSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import (
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.stateful_map import STATE_COLUMN, StatefulMap
from dagster_jet.operators.touched_keys import TouchedKeys, is_up_to
from dagster_jet.operators.user.calls import OnTimer, Row, UserCalls
from dagster_jet.operators.user.python_rows import row_dicts
from dagster_jet.operators.user.saved_timers import NO_TIMER_MS, with_timers, without_timers
from dagster_jet.operators.user.state import State

_TIMERS_AT_END_MAX = 10_000
"""Calls for one key at the end of the input, after which `on_timer` is taken to set a timer
always."""


@dataclass(frozen=True, kw_only=True)
class TimedMap(StatefulMap):
    """Operator with one input. `ttl_ms` is 0: a row expires when its timer is due."""

    on_timer: OnTimer
    """(state of the key, key columns, time of the timer in ms) -> as `function`."""
    in_processing_time: bool = False
    """Timers follow the clock of the epoch instead of the watermark."""

    def step(self, given: StepInput, state: StateReader) -> Step:
        if not self.in_processing_time:
            return super().step(given, state)
        (arrived,) = given.arrived
        now = pa.array(np.full(arrived.num_rows, given.after_ms, np.int64))
        place = arrived.schema.get_field_index(TIME_COLUMN)
        rows = arrived.set_column(place, arrived.schema.field(place), now)
        return super().step(replace(given, arrived=(rows,), before_ms=None), state)

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
        next_timers = touched.saved_touches.tolist()
        for (start, stop), saved, next_ms in zip(spans, saved_states, next_timers, strict=True):
            first, value = without_timers(saved, next_ms)
            timers = _Timers(self, calls, next(keys, {}), first)
            function = timers.before_each(self.function, times[start:stop])
            state = calls.over_rows(function, self.create, value, islice(rows, stop - start), start)
            timers.call_until(state, expired)
            yield state, _next_of(state)

    def _saved(
        self, state: State[Any], calls: UserCalls, row: int | None, key: Row | None = None
    ) -> bytes | None:
        saved = super()._saved(state, calls, row, key)
        return saved if saved is None else with_timers(saved, state.timers or {})

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
        for key, saved, next_ms in each:
            first, value = without_timers(saved, next_ms)
            assert value is not None, "a cleared key has no timers"
            timers, state = _Timers(self, calls, key, first), State(calls.load(value, None))
            state.timers = first
            timers.call_until(state, until)
            states.append(self._saved(state, calls, None, key))
            next_timers.append(_next_of(state))
        own = {
            TIME_COLUMN: pa.array(next_timers, pa.int64()),
            VERSION_COLUMN: pa.array(np.full(due.num_rows, given.version)),
            STATE_COLUMN: pa.array(states, pa.binary()),
        }
        columns = [own.get(name, due.column(name)) for name in self.state_schema.names]
        return pa.Table.from_arrays(columns, schema=self.state_schema)


@dataclass
class _Timers:
    """The timers of one key, while its rows go by."""

    operator: TimedMap
    calls: UserCalls
    key: Row
    first: dict[str, int]
    """Timers of the saved state."""

    def before_each(self, function: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
        """The function, which calls `on_timer` before a row with a later time."""
        coming = iter(times)

        @wraps(function)
        def call(state: State[Any], row: Row) -> Any:
            if state.timers is None:
                state.timers = self.first
            time = next(coming)
            self.call_until(state, time - 1)
            state.now_ms = time
            if state.is_cleared:
                state.renew(self.operator.create)
            return function(state, row)

        return call

    def call_until(self, state: State[Any], until_ms: int | None) -> None:
        """Calls `on_timer` for each timer that is due, also those that it sets."""
        if until_ms is None or _next_of(state) > until_ms:
            return
        assert state.timers is not None
        called, called_max = 0, _TIMERS_AT_END_MAX + len(state.timers)
        while (time := _next_of(state)) <= until_ms:
            called += 1
            if called > called_max and until_ms == FINAL_WATERMARK_MS - 1:
                raise self.calls.timer_error(
                    f"on_timer has set a timer {_TIMERS_AT_END_MAX} times after the last row of "
                    "the input, whose end calls all timers.",
                    self.key,
                    "Set a bounded number of timers after a row: count them in the state.",
                )
            state.timer = min(name for name, at in state.timers.items() if at == time)
            state.due_ms = state.timers.pop(state.timer)
            state.now_ms = until_ms + 1 if self.operator.in_processing_time else time
            self.calls.on_timer(self.operator.on_timer, state, self.key, time)
            state.timer = None


def _next_of(state: State[Any]) -> int:
    """The time of the key's next timer."""
    if not state.timers or state.is_cleared:
        return NO_TIMER_MS
    return min(state.timers.values())
