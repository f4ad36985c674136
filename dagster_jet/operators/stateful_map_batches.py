"""Operator of `map_stateful(in_batches=True)`: calls a user's function with whole tables, with a
state of typed columns per key.

    def running_total(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        ...                      # state: account, total; rows: account, amount, at
        return results, changed  # changed: account, total

    StatefulMapInBatches("totals", ("account",), ..., function=running_total, ttl_ms=None)

The function is called once per step with all rows of the step, those of one key in order of
arrival, and one state row for each of their keys. If a key's state expires between two of its rows,
the later row and those after it are in another call. *A state whose columns are all null is no
state*, in both directions: a key without state is passed as nulls, and returning nulls clears a
key. A key that is not returned keeps its state. Late rows, touches, the time to live and the end of
the input are as in `StatefulMap`.

Saved: per key the state's columns under their own names, and the last touch. A step reads and
writes only the keys it touched; without a time to live it writes only those that were returned. A
cleared key leaves a tombstone, as in `StatefulMap`.

`on_evict` is called before each such call, and at the end of the step, for all keys that have
expired by then. There are no dead letters: an error of the function concerns a table, not a single
row.

At-least-once: as `StatefulMap`. The rows of one call are not defined: after a crash they may be
different, so a result must depend on a key's rows and state alone.

Source: vector V12, in columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
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
from dagster_jet.operators.rows.far_times import python_rows
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct
from dagster_jet.operators.touched_keys import (
    TouchedKeys,
    eviction_watermarks,
    is_up_to,
    saved_rows,
)
from dagster_jet.operators.user.batch_calls import Returned, called

BatchFunction: TypeAlias = "Callable[[pa.Table, pa.Table], Any]"
OnEvictBatch: TypeAlias = "Callable[[pa.Table, pa.Array], Any]"


@dataclass(frozen=True)
class StatefulMapInBatches(RowOperator):
    """Operator with one input."""

    stage: str
    """Stage name, for messages."""
    keys: tuple[str, ...]
    row_schema: pa.Schema
    """The stream's columns, `keys` among them."""
    output_schema: pa.Schema
    state_columns: pa.Schema
    """Columns of a key's state."""
    function: BatchFunction
    """(states of the keys, rows) -> (results, changed states); either may be None."""
    ttl_ms: int | None = None
    on_evict: OnEvictBatch | None = None
    """(expired states, a watermark in ms for each) -> results or None; see `StatefulMap`."""
    on_end: Callable[[pa.Table], pa.Table] | None = None
    """All states -> results. Called at the end of the input, which removes the states. Not with a
    time to live."""

    def __post_init__(self) -> None:
        for columns, name, what in (
            (self.output_schema, "output_schema", "rows that the function returns"),
            (self.state_columns, "state_schema", "state of a key"),
        ):
            if len(columns) == 0:
                raise PipelineError(
                    f"{name} has no columns.",
                    stage=self.stage,
                    cure=f"Name the columns of the {what}.",
                )
        names = self.state_columns.names
        own = [*self.keys, *(field.name for field in ADDRESS), VERSION_COLUMN]
        taken = sorted({name for name in names if names.count(name) > 1 or name in own})
        if taken:
            raise PipelineError(
                f"{', '.join(taken)} cannot be a column of state_schema: it is there twice, or "
                "names a key, or a column of the stage's own.",
                stage=self.stage,
                cure="Give it another name; keys are saved with the state anyway.",
            )
        super().__post_init__()

    @property
    def state_schema(self) -> pa.Schema:
        version = pa.field(VERSION_COLUMN, pa.int64())
        return pa.schema([*ADDRESS, version, *self._keyed_states])

    @property
    def result_schema(self) -> pa.Schema:
        return self.output_schema

    @property
    def _keyed_states(self) -> pa.Schema:
        """Schema of states passed to and from the function: keys and state, null if there is
        none."""
        keys = [self.row_schema.field(key) for key in self.keys]
        return pa.schema([*keys, *(field.with_nullable(True) for field in self.state_columns)])

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        """Drops cleared keys. With a time to live they stay until that is over: their last touch
        counts if another row of the key arrives."""
        if self.ttl_ms is not None:
            return merged
        return merged.filter(pa.array(self._has_state(merged)))

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        rows, late = drop_late(arrived, None if self.ttl_ms is None else given.before_ms)
        expired = self.expired_until(given.after_ms)
        notified_until = None if self.on_evict is None else expired
        ends = self.on_end is not None and given.after_ms == FINAL_WATERMARK_MS
        saved = state.scan() if ends else saved_rows(rows, state, self.state_schema, notified_until)
        touched = TouchedKeys.of(self.keys, saved, rows)
        results, after, is_returned = self._lives(touched)
        removed = self.state_schema.empty_table()
        if ends:
            results.append(self._rest(after, touched.untouched))
            removed = self._removed(touched.untouched, given.version)
            after, is_returned = self._without_state(after), np.full(len(is_returned), True)
        has_state = self._has_state(after)
        is_over = is_up_to(touched.touches, expired)
        # Expired in the step that created it: not saved; older versions have expired as well.
        is_written = is_returned & (has_state | self._has_state(touched.saved))
        if self.ttl_ms is not None:
            is_written |= touched.touches > touched.saved_touches
        numbers = np.flatnonzero(is_written & ~is_over)
        delta = touched.state_rows(
            numbers,
            touched.touches[numbers],
            given.version,
            _columns(after.select(self.state_columns.names).take(pa.array(numbers))),
            self.state_schema,
        )
        over = np.flatnonzero(is_over & has_state)
        untouched = touched.untouched
        others = untouched.filter(
            pa.array(is_up_to(event_times(untouched), expired) & self._has_state(untouched))
        )
        ended = [after.take(pa.array(over)), others.select(self._keyed_states.names)]
        touches = np.append(touched.touches[over], event_times(others))
        results += self._evict(pa.concat_tables(ended), touches)
        delta = pa.concat_tables([delta, removed])
        return Step(pa.concat_tables(results), delta, arrived.num_rows, late)

    def _rest(self, after: pa.Table, untouched: pa.Table) -> pa.Table:
        """Results of all states at the end of the input."""
        assert self.on_end is not None
        states = pa.concat_tables([after, untouched.select(self._keyed_states.names)])
        return self.on_end(states.filter(pa.array(self._has_state(states))))

    def _removed(self, saved: pa.Table, version: int) -> pa.Table:
        """Saved rows without their state."""
        saved = saved.filter(pa.array(self._has_state(saved)))
        count = saved.num_rows
        own = {f.name: pa.nulls(count, f.type) for f in self.state_columns}
        own[VERSION_COLUMN] = pa.array(np.full(count, version))
        columns = [own.get(name, saved.column(name)) for name in self.state_schema.names]
        return pa.Table.from_arrays(columns, schema=self.state_schema)

    def _lives(self, touched: TouchedKeys) -> tuple[list[pa.Table], pa.Table, np.ndarray]:
        """Calls the function for all rows, life by life.

        Returns:
            Its results, the state of each key afterwards, and a mask of the states that it
            returned.
        """
        states = self._states_of(touched)
        count = touched.rows.num_rows
        group = np.repeat(np.arange(states.num_rows), touched.stops - touched.starts)
        lives, before = np.zeros(count, np.int64), touched.times
        if self.ttl_ms is not None and count:
            before = touched.touches_before()
            begins = touched.begins_life(before, self.ttl_ms)
            begun, first = np.cumsum(begins), touched.starts[group]
            lives = begun - begun[first] + begins[first]
        results = [self.output_schema.empty_table()]
        is_returned = np.zeros(states.num_rows, bool)
        for life in distinct(lives).tolist():
            in_life = np.flatnonzero(lives == life)
            numbers = distinct(group[in_life])
            if life > 0:
                begin = in_life[np.searchsorted(group[in_life], numbers)]
                ended = states.take(pa.array(numbers))
                known = np.flatnonzero(self._has_state(ended))
                results += self._evict(ended.take(pa.array(known)), before[begin][known])
                states = self._replaced(states, numbers, self._without_state(ended))
            rows = touched.rows if len(in_life) == count else touched.rows.take(pa.array(in_life))
            found, after, returned = self._call(rows, states.take(pa.array(numbers)))
            results.append(found)
            states = self._replaced(states, numbers, after)
            is_returned[numbers] |= returned
        return results, states, is_returned

    def _without_state(self, states: pa.Table) -> pa.Table:
        keys = states.select(self.keys).columns
        nulls = [pa.nulls(states.num_rows, field.type) for field in self.state_columns]
        return pa.Table.from_arrays([*keys, *nulls], schema=self._keyed_states)

    def _replaced(self, states: pa.Table, numbers: np.ndarray, new: pa.Table) -> pa.Table:
        """States with the rows `numbers` replaced."""
        if len(numbers) == states.num_rows:
            return new
        places = np.arange(states.num_rows)
        places[numbers] = states.num_rows + np.arange(len(numbers))
        return pa.concat_tables([states, new]).take(pa.array(places))

    def _states_of(self, touched: TouchedKeys) -> pa.Table:
        """One state row per key, in the order of the keys in `touched.rows`."""
        keys = touched.firsts(np.arange(len(touched.starts))).select(self.keys)
        states = touched.saved.select(self.state_columns.names)
        return pa.Table.from_arrays([*keys.columns, *states.columns], schema=self._keyed_states)

    def _call(self, rows: pa.Table, before: pa.Table) -> tuple[pa.Table, pa.Table, np.ndarray]:
        """Calls the function. Returns its results, the states afterwards (in the order of
        `before`), and a mask of the states that it returned."""
        rows = rows.select(self.row_schema.names).combine_chunks()
        what = f"{rows.num_rows} rows of {before.num_rows} keys"
        function, stage = self.function, self.stage
        returned = Returned(function, stage)
        results, changed = returned.two(
            called(function, stage, what, before.combine_chunks(), rows)
        )
        results = returned.table(results, self.output_schema, "results", "output_schema")
        changed = returned.table(changed, self._keyed_states, "states", "keys and state_schema")
        places = self._places(before, changed, returned)
        self._refuse_nulls(changed, returned)
        newest = np.arange(before.num_rows)
        newest[places] = before.num_rows + np.arange(changed.num_rows)
        is_returned = newest >= before.num_rows
        after = pa.concat_tables([before, changed]).take(pa.array(newest))
        return results, after, is_returned

    def _places(self, before: pa.Table, changed: pa.Table, returned: Returned) -> np.ndarray:
        """Row number in `before` of each returned state's key."""
        codes, changed_codes = key_codes(self.keys, before, changed)
        place_of = np.full(before.num_rows + changed.num_rows, -1)
        place_of[codes] = np.arange(before.num_rows)
        places: np.ndarray = place_of[changed_codes]
        unknown = np.flatnonzero(places < 0)
        if len(unknown):
            raise returned.error(
                f"a state of {self._named(changed, unknown[0])}, which has no row in this call",
                "Return states of keys that it was given, as it was given them.",
            )
        counts = np.bincount(places, minlength=before.num_rows)
        twice = np.flatnonzero(counts > 1)
        if len(twice):
            raise returned.error(
                f"{counts[twice[0]]} states of {self._named(before, twice[0])}",
                "Return one row per key, its state after the last of its rows.",
            )
        return places

    def _refuse_nulls(self, changed: pa.Table, returned: Returned) -> None:
        """Raises if a returned state that is not cleared has a null in a NOT NULL column."""
        needed = pa.schema([field for field in self.state_columns if not field.nullable])
        if len(needed):
            kept = changed.filter(pa.array(self._has_state(changed)))
            returned.table(kept.select(needed.names), needed, "states", "state_schema")

    def _evict(self, expired: pa.Table, touches: np.ndarray) -> list[pa.Table]:
        """Calls `on_evict` for expired states. Returns its results.

        Args:
            expired: keys and states.
            touches: their last touches.
        """
        if self.on_evict is None or self.ttl_ms is None or expired.num_rows == 0:
            return []
        watermarks = pa.array(eviction_watermarks(touches, self.ttl_ms))
        what = f"{expired.num_rows} expired states"
        returned = called(self.on_evict, self.stage, what, expired.combine_chunks(), watermarks)
        checked = Returned(self.on_evict, self.stage)
        return [checked.table(returned, self.output_schema, "results", "output_schema")]

    def _has_state(self, states: pa.Table) -> np.ndarray:
        """Per row: True if any of the state's columns is not null."""
        found = np.zeros(states.num_rows, bool)
        for name in self.state_columns.names:
            found |= states.column(name).is_valid().to_numpy()
        return found

    def _named(self, states: pa.Table, place: int) -> str:
        (key,) = python_rows(states.select(self.keys).slice(place, 1)) or [{}]
        return ", ".join(f"{name}={value!r}" for name, value in key.items()) or "the stage"


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))
