"""Operator of `map_stateful`: calls a user's function per row, with a state per key.

    def running_total(state: State[int], row: dict) -> dict:
        state.value += row["amount"]
        return {"account": row["account"], "total": state.value}

    StatefulMap("totals", ("account",), ..., function=running_total, create=int, ttl_ms=None)

The rows of one key in one step are passed to the function by event time, then by arrival. With a
time to live, a row before the watermark is late (dropped and counted), and a key is removed when
its last touch < watermark - ttl (strict); `on_evict` is called then, if there is one. Without a
time to live no row is late and only `State.clear` removes a key.

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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError
from dagster_jet.operators.address import ADDRESS, check_columns
from dagster_jet.operators.lateness import drop_late, event_times
from dagster_jet.operators.operator import (
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
    newest_version,
)
from dagster_jet.operators.touched_keys import (
    TouchedKeys,
    eviction_watermarks,
    is_up_to,
    saved_rows,
)
from dagster_jet.operators.user.calls import Function, OnEvict, UserCalls
from dagster_jet.operators.user.python_rows import row_dicts

STATE_COLUMN = "__state"
"""binary: the state, saved in `state_format`; null for a cleared key."""


@dataclass(frozen=True)
class StatefulMap:
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
    over, not after `State.clear`. At the end of the input all keys expire; the watermark is then
    the first one under which this key would have expired."""
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
        check_columns(self, self.keys)

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        return (pa.schema([*ADDRESS, *self.row_schema]),)

    @property
    def state_schema(self) -> pa.Schema:
        keys = [self.row_schema.field(key) for key in self.keys]
        version = pa.field(VERSION_COLUMN, pa.int64())
        return pa.schema([*ADDRESS, version, *keys, pa.field(STATE_COLUMN, pa.binary())])

    @property
    def result_schema(self) -> pa.Schema:
        return self.output_schema

    @property
    def time_column(self) -> str:
        return TIME_COLUMN

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        return newest_version(tables, self.keys)

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        """Drops cleared keys. With a time to live they stay until that is over: their last touch
        counts if another row of the key arrives."""
        if self.ttl_ms is not None:
            return merged
        return merged.filter(merged.column(STATE_COLUMN).is_valid())

    def expired_until(self, watermark_ms: int | None) -> int | None:
        if watermark_ms is None or self.ttl_ms is None:
            return None
        return watermark_ms - self.ttl_ms - 1

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        rows, late = drop_late(arrived, None if self.ttl_ms is None else given.before_ms)
        expired = self.expired_until(given.after_ms)
        notified_until = None if self.on_evict is None else expired
        saved = saved_rows(rows, state, self.state_schema, notified_until)
        touched = TouchedKeys.of(self.keys, saved, rows)
        calls, delta = self._call(touched, given)
        results = calls.fitting_results() if self.keeps_dead_letters else calls.results()
        if results is None:
            # Values are checked column by column: checking every row costs as much as the rest of a
            # step. The step is repeated row by row only if some values are wrong.
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
        self._evict(touched.untouched, calls, given.after_ms)
        return calls, delta

    def _touch(self, touched: TouchedKeys, calls: UserCalls, given: StepInput) -> pa.Table:
        """Calls the function with all rows; returns the states that changed."""
        rows = row_dicts(touched.rows.select(self.row_schema.names))
        expired, touches = self.expired_until(given.after_ms), touched.touches.copy()
        expiring = is_up_to(touches, expired)
        moved = touches > touched.saved_touches
        changed: list[int] = []
        states: list[bytes | None] = []
        last: dict[int, Any] = {}
        saved_states = touched.saved.column(STATE_COLUMN).to_pylist()
        spans = zip(touched.starts.tolist(), touched.stops.tolist(), saved_states, strict=True)
        for number, (start, stop, before) in enumerate(spans):
            of_key = islice(rows, stop - start)
            if self.keeps_dead_letters:
                state, last_good = calls.over_good_rows(
                    self.function, self.create, before, of_key, start
                )
                if last_good != stop - 1:
                    # A dead letter is no touch.
                    touches[number] = touched.touch(number, last_good)
                    expiring[number] = expired is not None and touches[number] <= expired
                    moved[number] = touches[number] > touched.saved_touches[number]
            else:
                state = calls.over_rows(self.function, self.create, before, of_key, start)
            if expiring[number]:
                # Expired in the step that created it: not saved; older versions have expired as
                # well.
                if not state.is_cleared:
                    last[number] = state.value
                continue
            after = None if state.is_cleared else calls.save(state.value, start)
            if after != before or (self.ttl_ms is not None and moved[number]):
                changed.append(number)
                states.append(after)
        expiring_numbers = np.asarray(list(last), np.int64)
        expiring_keys = touched.firsts(expiring_numbers)
        self._notify_evicted(
            expiring_keys, touches[expiring_numbers], last.values(), calls, given.after_ms
        )
        numbers = np.asarray(changed, np.int64)
        return touched.state_rows(
            numbers,
            touches[numbers],
            given.version,
            {STATE_COLUMN: pa.array(states, pa.binary())},
            self.state_schema,
        )

    def _evict(self, untouched: pa.Table, calls: UserCalls, after_ms: int | None) -> None:
        """Calls `on_evict` for expired saved keys without rows in this step."""
        if self.on_evict is None or untouched.num_rows == 0:
            return
        expiring = is_up_to(event_times(untouched), self.expired_until(after_ms))
        known = untouched.column(STATE_COLUMN).is_valid().to_numpy()
        over = untouched.filter(pa.array(expiring & known))
        values = (calls.load(s, None) for s in over.column(STATE_COLUMN).to_pylist())
        self._notify_evicted(over, event_times(over), values, calls, after_ms)

    def _notify_evicted(
        self,
        keys: pa.Table,
        touches: np.ndarray,
        values: Iterable[Any],
        calls: UserCalls,
        after_ms: int | None,
    ) -> None:
        if self.on_evict is None or after_ms is None or self.ttl_ms is None:
            return
        watermarks = eviction_watermarks(touches, after_ms, self.ttl_ms).tolist()
        each = zip(row_dicts(keys.select(self.keys)), values, watermarks, strict=True)
        for key, value, watermark_ms in each:
            calls.on_eviction(self.on_evict, key, value, watermark_ms)
