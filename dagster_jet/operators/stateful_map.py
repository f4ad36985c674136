"""A user's function over the rows of a stream, with a state per key: `map_stateful`.

    def running_total(state: State[int], row: dict) -> dict:
        state.value += row["amount"]
        return {"account": row["account"], "total": state.value}

    StatefulMap("totals", ("account",), ..., function=running_total, create=int, ttl_ms=None)

The rows of one key that came in one step are handed over by event time, then by arrival. With a
time to live, a row before the watermark is late (dropped, counted), and a key is forgotten when
its last touch < watermark - ttl (strict); `on_evict` may have a last word. Without one nothing is
ever late and nothing is forgotten, save by `State.clear`.

Saved: per key the state (`saved_value.py`) and the event time of its last touch, which never goes
back. A step reads and writes the keys it touched, no others. A cleared key leaves a small row
without state, which hides its past and goes with it, or with the time to live.

With `keeps_dead_letters` a row for which the function raises, or returns what does not fit, becomes
a dead letter: the step goes on as if it had not come (see `UserCalls.over_good_rows`), and it is no
touch. The function is then called once more with the good rows of that key before it. What `create`
and `on_evict` raise still fails the job: there is no row that could be a dead letter.

At-least-once: rows between the snapshot and the crash are handed to the function again, with the
states as the snapshot has them; so each row changes the state once in each history that counts,
but rows emitted after the snapshot are emitted again. A side effect of the function itself is
at-least-once under every guarantee.

Source: Jet `TransformStatefulP`; vector V12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import PipelineError
from dagster_jet.operators.address import ADDRESS, check_columns, readable_time
from dagster_jet.operators.lateness import drop_late, event_times
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
    newest_version,
)
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct, order_by
from dagster_jet.operators.user import saved_value
from dagster_jet.operators.user.calls import Function, OnEvict, UserCalls
from dagster_jet.operators.user.python_rows import row_dicts

STATE_COLUMN = "__state"
"""binary: the state as `state_format` saves it, or null for a key that was cleared."""


@dataclass(frozen=True)
class StatefulMap:
    """The operator. One input."""

    stage: str
    """For messages."""
    keys: tuple[str, ...]
    row_schema: pa.Schema
    """The stream's columns, `keys` among them: what a row dict has."""
    output_schema: pa.Schema
    function: Function
    """(state of the row's key, row) -> a row, several rows, or None."""
    create: Callable[[], Any]
    """The state of a key never seen, or forgotten."""
    ttl_ms: int | None = None
    on_evict: OnEvict | None = None
    """(key columns, state value, watermark in ms) -> as `function`; called when the time to live
    is over, not after `State.clear`. At the end of the input, where everything is over, the
    watermark is the first one under which this key's time would have been."""
    keeps_dead_letters: bool = False
    """Rows that the function cannot take are rejected; else they fail the step."""
    has_time: bool = True
    """The stream has event time. For messages."""
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
        """Without cleared keys. With a time to live they go by that: until then their last touch
        counts for a row of the key that comes after all."""
        if self.ttl_ms is not None:
            return merged
        return merged.filter(merged.column(STATE_COLUMN).is_valid())

    def expired_until(self, watermark_ms: int | None) -> int | None:
        if watermark_ms is None or self.ttl_ms is None:
            return None
        return watermark_ms - self.ttl_ms - 1

    def describe_state(self, state: pa.Table) -> pa.Table:
        """Merged state rows for people: keys, last touch, and the state's `repr`.

        Pickled states need their classes, and are read only where the format says so.
        """
        state = state.filter(state.column(STATE_COLUMN).is_valid())
        texts = [
            repr(saved_value.load(s, self.state_format))
            for s in state.column(STATE_COLUMN).to_pylist()
        ]
        rows = state.select(self.keys).append_column("last_touch", readable_time(state))
        return rows.append_column("state", pa.array(texts, pa.string()))

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        rows, late = drop_late(arrived, None if self.ttl_ms is None else given.before_ms)
        saved = self._saved(rows, given.after_ms, state)
        touched = _Touched.of(self.keys, saved, rows)
        calls, delta = self._call(touched, saved, given)
        results = calls.fitting_results() if self.keeps_dead_letters else calls.results()
        if results is None:
            # Values are checked column by column, because looking at each row's costs as much as
            # the rest of a step. Only where some are wrong it is done once more, row by row.
            calls, delta = self._call(touched, saved, given, checks_each=True)
            results = calls.results()
        rejected = calls.rejected() if self.keeps_dead_letters else None
        return Step(results, delta, arrived.num_rows, late, rejected)

    def _call(
        self, touched: _Touched, saved: pa.Table, given: StepInput, *, checks_each: bool = False
    ) -> tuple[UserCalls, pa.Table]:
        """All calls of a step; the states that it leaves changed."""
        calls = UserCalls(
            self.stage, self.keys, self.output_schema, touched.rows,
            state_format=self.state_format, has_time=self.has_time, checks_each=checks_each,
        )  # fmt: skip
        delta = self._touch(touched, calls, given)
        self._evict(saved.filter(pa.array(~touched.saved_is_touched)), calls, given.after_ms)
        return calls, delta

    def _saved(self, rows: pa.Table, after_ms: int | None, state: StateReader) -> pa.Table:
        """What is known of the keys that came, and of those whose eviction is to be told."""
        hashes = rows.column(HASH_COLUMN).to_numpy()
        expired = self.expired_until(after_ms)
        if expired is not None and self.on_evict is not None:
            # Some of them were touched again since: `find` has their newest version.
            hashes = np.append(hashes, state.due(expired).column(HASH_COLUMN).to_numpy())
        if len(hashes) == 0:
            return self.state_schema.empty_table()
        return state.find(distinct(hashes))

    def _touch(self, touched: _Touched, calls: UserCalls, given: StepInput) -> pa.Table:
        """Hands all rows over; returns the states that the step leaves changed."""
        rows = row_dicts(touched.rows.select(self.row_schema.names))
        expired, touches = self.expired_until(given.after_ms), touched.touches.copy()
        expiring = _up_to(touches, expired)
        moved = touches > touched.saved_touches
        changed: list[int] = []
        states: list[bytes | None] = []
        last: dict[int, Any] = {}
        for number, (start, stop, before) in enumerate(touched.spans()):
            of_key = islice(rows, stop - start)
            if self.keeps_dead_letters:
                state, last_good = calls.over_good_rows(
                    self.function, self.create, before, of_key, start
                )
                if last_good != stop - 1:
                    # A rejected row is no touch.
                    touches[number] = touched.touch(number, last_good)
                    expiring[number] = expired is not None and touches[number] <= expired
                    moved[number] = touches[number] > touched.saved_touches[number]
            else:
                state = calls.over_rows(self.function, self.create, before, of_key, start)
            if expiring[number]:
                # Over in the step that brought it: not saved, and older versions are as expired.
                if not state.is_cleared:
                    last[number] = state.value
                continue
            after = None if state.is_cleared else calls.save(state.value, start)
            if after != before or (self.ttl_ms is not None and moved[number]):
                changed.append(number)
                states.append(after)
        expiring_touches = touches[np.asarray(list(last), np.int64)]
        expiring_keys = touched.firsts(list(last))
        self._notify_evicted(expiring_keys, expiring_touches, last.values(), calls, given.after_ms)
        firsts = touched.firsts(changed)
        own = {
            TIME_COLUMN: pa.array(touches[np.asarray(changed, np.int64)]),
            VERSION_COLUMN: pa.array(np.full(len(changed), given.version)),
            STATE_COLUMN: pa.array(states, pa.binary()),
        }
        schema = self.state_schema
        return pa.Table.from_arrays(
            [own[name] if name in own else firsts.column(name) for name in schema.names],
            schema=schema,
        )

    def _evict(self, untouched: pa.Table, calls: UserCalls, after_ms: int | None) -> None:
        """The last word about saved keys whose time to live is over and that did not come."""
        if self.on_evict is None or untouched.num_rows == 0:
            return
        expiring = _up_to(event_times(untouched), self.expired_until(after_ms))
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
        known_ms = np.full(len(touches), after_ms)
        if after_ms == FINAL_WATERMARK_MS:
            known_ms = touches + self.ttl_ms + 1
        each = zip(row_dicts(keys.select(self.keys)), values, known_ms.tolist(), strict=True)
        for key, value, watermark_ms in each:
            calls.on_eviction(self.on_evict, key, value, watermark_ms)


@dataclass(frozen=True)
class _Touched:
    """The rows of a step by key, in the order in which the function sees them."""

    rows: pa.Table
    starts: np.ndarray
    """Per key: its rows are `rows[start:stop]`."""
    stops: np.ndarray
    touches: np.ndarray
    """Per key: its latest event time, now or before."""
    saved_touches: np.ndarray
    saved_states: list[bytes | None]
    """Per key; None if it is new, or was cleared."""
    saved_is_touched: np.ndarray
    """Per saved row: its key is among these."""

    @classmethod
    def of(cls, keys: Sequence[str], saved: pa.Table, rows: pa.Table) -> _Touched:
        codes, saved_codes = key_codes(keys, rows, saved)  # in order of arrival
        order = order_by(codes, event_times(rows))
        rows, codes = rows.take(pa.array(order)), codes[order]
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        stops = np.append(starts[1:], len(codes))[: len(starts)]
        place_of = np.full(len(saved_codes) + len(codes), -1)
        place_of[saved_codes] = np.arange(len(saved_codes))
        places = place_of[codes[starts]]
        new = places < 0
        saved_is_touched = np.zeros(len(saved_codes), bool)
        saved_is_touched[places[~new]] = True
        before = saved.take(pa.array(places, mask=new))
        never = np.iinfo(np.int64).min
        saved_touches = before.column(TIME_COLUMN).fill_null(never).to_numpy()
        return cls(
            rows,
            starts,
            stops,
            np.maximum(saved_touches, event_times(rows)[stops - 1]),
            saved_touches,
            before.column(STATE_COLUMN).to_pylist(),
            saved_is_touched,
        )

    def spans(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Per key: where its rows start and stop, and its saved state."""
        return zip(self.starts.tolist(), self.stops.tolist(), self.saved_states, strict=True)

    def touch(self, number: int, last: int | None) -> int:
        """A key's latest event time if this row is its last, or if there is none."""
        saved = int(self.saved_touches[number])
        if last is None:
            return saved
        return max(saved, int(self.rows.column(TIME_COLUMN)[last].as_py()))

    def firsts(self, numbers: Sequence[int]) -> pa.Table:
        """The first row of each of these keys, for what its rows have in common."""
        return self.rows.take(pa.array(self.starts[np.asarray(numbers, np.int64)]))


def _up_to(times: np.ndarray, expired: int | None) -> np.ndarray:
    return np.zeros(len(times), bool) if expired is None else times <= expired
