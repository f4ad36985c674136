"""Operator of `map_stateful`: calls a user's function per row, with a state per key.

    def running_total(state: State[int], row: dict) -> dict:
        state.value += row["amount"]
        return {"account": row["account"], "total": state.value}

    StatefulMap("totals", ("account",), ..., function=running_total, create=int, ttl_ms=None)

The rows of one key are passed to the function in order of arrival, also across steps;
`InEventOrder` around this operator makes it the order of event time. With a time to live, a row
before the watermark is late (dropped and counted), and a key is removed when its last touch <
watermark - ttl (strict), or before a row that comes more than the time to live after its last
touch; `on_evict` is called then, if there is one. Without a time to live no row is late and only
`State.clear` removes a key.

Saved: per key the state (`saved_value.py`) and the event time of its last touch, which never
decreases. A step reads and writes only the keys it touched. A cleared key leaves a tombstone: a
small row without state, which hides older versions and is dropped with them, or by the time to
live.

With `keeps_dead_letters` a row for which the function raises, or returns a row that does not fit,
becomes a dead letter. The step continues as if it had not arrived (see `UserCalls.over_good_rows`),
and it is no touch. The function is then called again with the good rows of that key before it. If
`create` or `on_evict` raises, the job fails: no row could become a dead letter.

At-least-once: rows between the snapshot and the crash are passed to the function again, with the
states of the snapshot. So each row changes the state once in each history that counts, but rows
emitted after the snapshot are emitted again. Side effects of the function itself are at-least-once
under every guarantee.

Source: Jet `TransformStatefulP`; vector V12.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.core.job_context import own_metrics
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError
from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.lateness import drop_late, event_times
from dagster_jet.operators.operator import (
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.row_operator import RowOperator
from dagster_jet.operators.touched_keys import (
    NEVER_TOUCHED,
    TouchedKeys,
    eviction_watermarks,
    is_up_to,
    saved_rows,
)
from dagster_jet.operators.user.calls import Function, OnEvict, Row, UserCalls
from dagster_jet.operators.user.python_rows import row_dicts
from dagster_jet.operators.user.state import State

STATE_COLUMN = "__state"
"""binary: the state, saved in `state_format`; null for a cleared key."""


@dataclass(frozen=True)
class StatefulMap(RowOperator):
    """Operator with one input."""

    stage: str
    """Stage name, for messages."""
    keys: tuple[str, ...]
    row_schema: pa.Schema
    """The stream's columns, `keys` among them: the keys of a row dict."""
    output_schema: pa.Schema
    function: Function
    """(state of the row's key, row) -> a row, several rows, or None."""
    create: Callable[[], Any]
    """Returns the state of a new or removed key."""
    ttl_ms: int | None = None
    on_evict: OnEvict | None = None
    """(key columns, state value, watermark in ms) -> as `function`. Called when the time to live is
    over, not after `State.clear`. The watermark is the first one under which the key has expired.
    At the end of the input all keys expire."""
    keeps_dead_letters: bool = False
    """Rows that the function fails on become dead letters; else they fail the step."""
    has_time: bool = True
    """The stream has event time. Used in messages only."""
    state_format: StateFormat = StateFormat.PLAIN

    def __post_init__(self) -> None:
        if len(self.output_schema) == 0:
            raise PipelineError(
                "output_schema has no columns.",
                stage=self.stage,
                cure="Name the columns of the rows that the function returns.",
            )
        super().__post_init__()

    @property
    def state_schema(self) -> pa.Schema:
        keys = [self.row_schema.field(key) for key in self.keys]
        version = pa.field(VERSION_COLUMN, pa.int64())
        return pa.schema([*ADDRESS, version, *keys, pa.field(STATE_COLUMN, pa.binary())])

    @property
    def result_schema(self) -> pa.Schema:
        return self.output_schema

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        """Drops cleared keys. With a time to live they stay until that is over: their last touch
        counts if another row of the key arrives."""
        if self.ttl_ms is not None:
            return merged
        return merged.filter(merged.column(STATE_COLUMN).is_valid())

    @property
    def _is_called_without_rows(self) -> bool:
        """Whether a step needs expired keys that have no rows."""
        return self.on_evict is not None

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        rows, late = drop_late(arrived, None if self.ttl_ms is None else given.before_ms)
        expired = self.expired_until(given.after_ms)
        notified_until = expired if self._is_called_without_rows else None
        saved = saved_rows(rows, state, self.state_schema, notified_until)
        touched = TouchedKeys.of(self.keys, saved, rows)
        counted = own_metrics().totals
        calls, delta = self._call(touched, given)
        results = calls.fitting_results() if self.keeps_dead_letters else calls.results()
        if results is None:
            # Values are checked column by column: checking every row costs as much as the rest of a
            # step. The step is repeated row by row only if some values are wrong.
            own_metrics().take_back(counted)
            calls, delta = self._call(touched, given, checks_each=True)
            results = calls.results()
        rejected = calls.rejected() if self.keeps_dead_letters else None
        return Step(results, delta, arrived.num_rows, late, rejected)

    def _call(
        self, touched: TouchedKeys, given: StepInput, *, checks_each: bool = False
    ) -> tuple[UserCalls, pa.Table]:
        """Makes all calls of a step; returns them and the states that changed."""
        calls = UserCalls(
            self.stage, self.keys, self.output_schema, touched.rows,
            state_format=self.state_format, has_time=self.has_time, checks_each=checks_each,
        )  # fmt: skip
        delta = self._touch(touched, calls, given)
        others = self._evict(touched.untouched, calls, given)
        return calls, pa.concat_tables([delta, others])

    def _touch(self, touched: TouchedKeys, calls: UserCalls, given: StepInput) -> pa.Table:
        """Calls the function with all rows; returns the states that changed."""
        expired, touches = self.expired_until(given.after_ms), touched.touches.copy()
        changed: list[int] = []
        states: list[bytes | None] = []
        last: dict[int, Any] = {}
        saved_states = touched.saved.column(STATE_COLUMN).to_pylist()
        lives = self._lives(touched, saved_states, calls, expired)
        for number, (before, (state, touch)) in enumerate(zip(saved_states, lives, strict=True)):
            touches[number] = touch
            if expired is not None and touch <= expired:
                # Expired in the step that created it: not saved; older versions have expired as
                # well.
                if not state.is_cleared:
                    last[number] = state.value
                continue
            after = self._saved(state, calls, touched.starts[number])
            moved = self.ttl_ms is not None and touch != touched.saved_touches[number]
            if after != before or moved:
                changed.append(number)
                states.append(after)
        expiring = np.asarray(list(last), np.int64)
        self._notify_evicted(touched.firsts(expiring), touches[expiring], last.values(), calls)
        numbers = np.asarray(changed, np.int64)
        return touched.state_rows(
            numbers,
            touches[numbers],
            given.version,
            {STATE_COLUMN: pa.array(states, pa.binary())},
            self.state_schema,
        )

    def _saved(
        self, state: State[Any], calls: UserCalls, row: int | None, key: Row | None = None
    ) -> bytes | None:
        return None if state.is_cleared else calls.save(state.value, row, key)

    def _lives(
        self,
        touched: TouchedKeys,
        saved_states: Sequence[bytes | None],
        calls: UserCalls,
        expired: int | None,
    ) -> Iterator[tuple[State[Any], int]]:
        """Calls the function with all rows; yields for each key its state and last touch.

        If a state expires before a row of its key, it is evicted, and the row gets a new one.
        """
        rows = row_dicts(touched.rows.select(self.row_schema.names))
        touches, saved_touches = touched.touches.tolist(), touched.saved_touches.tolist()
        before, begins = self._beginnings(touched)
        spans = zip(touched.starts.tolist(), touched.stops.tolist(), saved_states, strict=True)
        for number, (start, stop, saved) in enumerate(spans):
            of_key, first, living = islice(rows, stop - start), start, saved
            if self.keeps_dead_letters:
                of_lives = _GoodLives(self, touched, calls, number)
                yield of_lives.lived(saved, of_key, saved_touches[number])
                deque(of_key, maxlen=0)  # a life that was called again has left some
                continue
            for begin in begins[bisect_left(begins, start) : bisect_left(begins, stop)]:
                state = self._lived(calls, living, of_key, first, begin)
                self.evict_one(touched, number, state, int(before[begin]), calls)
                living, first = None, begin
            yield self._lived(calls, living, of_key, first, stop), touches[number]

    def _beginnings(self, touched: TouchedKeys) -> tuple[np.ndarray, list[int]]:
        """Last touches before each row, and the rows that begin a life."""
        if self.ttl_ms is None or self.keeps_dead_letters:
            return touched.times, []
        before = touched.touches_before()
        return before, np.flatnonzero(touched.begins_life(before, self.ttl_ms)).tolist()

    def _lived(
        self, calls: UserCalls, saved: bytes | None, rows: Iterator[Row], start: int, stop: int
    ) -> State[Any]:
        """The state of a key after these rows of one life."""
        if start == stop:
            return State.absent() if saved is None else State(calls.load(saved, start))
        of_life = islice(rows, stop - start)
        return calls.over_rows(self.function, self.create, saved, of_life, start)

    def evict_one(
        self, touched: TouchedKeys, number: int, state: State[Any], touch: int, calls: UserCalls
    ) -> None:
        """Calls `on_evict` for the state of a key that has rows in this step."""
        if self.on_evict is not None and not state.is_cleared:
            key = touched.firsts(np.asarray([number]))
            self._notify_evicted(key, np.asarray([touch]), [state.value], calls)

    def _evict(self, untouched: pa.Table, calls: UserCalls, given: StepInput) -> pa.Table:
        """Calls `on_evict` for expired saved keys without rows in this step; no state changes."""
        unchanged = self.state_schema.empty_table()
        if self.on_evict is None or untouched.num_rows == 0:
            return unchanged
        expiring = is_up_to(event_times(untouched), self.expired_until(given.after_ms))
        known = untouched.column(STATE_COLUMN).is_valid().to_numpy()
        over = untouched.filter(pa.array(expiring & known))
        values = (calls.load(s, None) for s in over.column(STATE_COLUMN).to_pylist())
        self._notify_evicted(over, event_times(over), values, calls)
        return unchanged

    def _notify_evicted(
        self, keys: pa.Table, touches: np.ndarray, values: Iterable[Any], calls: UserCalls
    ) -> None:
        if self.on_evict is None or self.ttl_ms is None:
            return
        watermarks = eviction_watermarks(touches, self.ttl_ms).tolist()
        each = zip(row_dicts(keys.select(self.keys)), values, watermarks, strict=True)
        for key, value, watermark_ms in each:
            calls.on_eviction(self.on_evict, key, value, watermark_ms)


@dataclass
class _GoodLives:
    """The lives of one key, with dead letters: as if these had not arrived."""

    operator: StatefulMap
    touched: TouchedKeys
    calls: UserCalls
    number: int

    def lived(self, saved: bytes | None, rows: Iterator[Row], touch: int) -> tuple[State[Any], int]:
        """Returns the key's state and its last touch after all rows."""
        calls = self.calls
        start, stop = (int(n[self.number]) for n in (self.touched.starts, self.touched.stops))
        while True:
            mark, end = calls.mark(), self._end(start, stop, touch)
            state = self._over(saved, rows, start, end)
            earlier = self._end(start, end, touch)
            if earlier < end:  # dead letters do not extend the life: once more, up to its end
                end = earlier
                calls.cut(mark, end)
                rows = calls.rows_again(start, stop)
                state = self._over(saved, rows, start, end)
            touch = self._touch(start, end, touch)
            if end == stop:
                return state, touch
            mark, saved = calls.mark(), self._saved(state, end)
            self.operator.evict_one(self.touched, self.number, state, touch, calls)
            state = self._over(None, rows, end, end + 1)
            if calls.is_rejected(end):  # it does not begin a life
                calls.cut(mark, end + 1)
            else:
                saved, touch = self._saved(state, end), int(self.touched.times[end])
            start = end + 1

    def _over(self, saved: bytes | None, rows: Iterator[Row], start: int, end: int) -> State[Any]:
        if start == end:
            return State.absent() if saved is None else State(self.calls.load(saved, start))
        of_life = islice(rows, end - start)
        operator = self.operator
        return self.calls.over_good_rows(operator.function, operator.create, saved, of_life, start)

    def _saved(self, state: State[Any], row: int) -> bytes | None:
        return None if state.is_cleared else self.calls.save(state.value, row)

    def _end(self, start: int, stop: int, touch: int) -> int:
        """The first row before which the state has expired."""
        ttl_ms = self.operator.ttl_ms
        if ttl_ms is None:
            return stop
        for row, time in self._good(start, stop):
            if touch != NEVER_TOUCHED and time > touch + ttl_ms:
                return row
            touch = max(touch, time)
        return stop

    def _touch(self, start: int, end: int, touch: int) -> int:
        return max([touch, *(time for _, time in self._good(start, end))])

    def _good(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Rows, with their times, that are not dead letters."""
        times = self.touched.times[start:end].tolist()
        return (
            (row, time) for row, time in enumerate(times, start) if not self.calls.is_rejected(row)
        )
