"""Keys touched by a step: their rows in order, their saved rows, their last touches.

Each row of a key that is not late touches it. Its *last touch* is the greatest event time of its
rows so far and never decreases. A key's saved row expires by its last touch.

With a time to live, the rows of a key are divided into *lives*. A row that comes more than the time
to live after the last touch begins a new life, because the state has expired before it. So the
result depends on the order of the rows, and not on how they are divided into steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
)
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import dense_codes, distinct, order_by

NEVER_TOUCHED = np.iinfo(np.int64).min
"""Last touch of a key without saved row."""


@dataclass(frozen=True)
class TouchedKeys:
    """Rows of a step, grouped by key, in the order in which functions get them."""

    rows: pa.Table
    """Rows grouped by key; within a key in order of arrival."""
    starts: np.ndarray
    """Per key: its rows are `rows[start:stop]`."""
    stops: np.ndarray
    touches: np.ndarray
    """Last touch per key."""
    saved_touches: np.ndarray
    """Last touch per key before this step; for a new key `NEVER_TOUCHED`."""
    saved: pa.Table
    """Saved row per key; nulls for a new key."""
    untouched: pa.Table
    """Saved rows of other keys."""
    times: np.ndarray
    """Event time per row, in ms."""

    @classmethod
    def of(cls, keys: Sequence[str], saved: pa.Table, rows: pa.Table) -> TouchedKeys:
        codes, saved_codes = key_codes(keys, rows, saved)
        order = order_by(rows.column(ARRIVAL_COLUMN).to_numpy())
        order = order[order_by(codes[order])]
        rows, codes = rows.drop_columns([ARRIVAL_COLUMN]).take(pa.array(order)), codes[order]
        times = event_times(rows)
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        stops = np.append(starts[1:], len(codes))[: len(starts)]
        place_of = np.full(len(saved_codes) + len(codes), -1)
        place_of[saved_codes] = np.arange(len(saved_codes))
        places = place_of[codes[starts]]
        new = places < 0
        is_untouched = np.ones(len(saved_codes), bool)
        is_untouched[places[~new]] = False
        before = saved.take(pa.array(places, mask=new))
        saved_touches = before.column(TIME_COLUMN).fill_null(NEVER_TOUCHED).to_numpy()
        latest = np.maximum.reduceat(times, starts) if len(starts) else times
        return cls(
            rows,
            starts,
            stops,
            np.maximum(saved_touches, latest),
            saved_touches,
            before,
            saved.filter(pa.array(is_untouched)),
            times,
        )

    def touches_before(self) -> np.ndarray:
        """Last touch of each row's key before that row."""
        count = len(self.times)
        if count == 0:
            return self.times
        group = np.repeat(np.arange(len(self.starts)), self.stops - self.starts)
        # One running maximum over all keys: (key, rank of the time) as one ascending integer.
        ranks = np.maximum.accumulate(group * count + dense_codes(self.times)) % count
        before = np.empty(count, np.int64)
        before[1:] = distinct(self.times)[ranks[:-1]]
        before[self.starts] = NEVER_TOUCHED
        touches: np.ndarray = np.maximum(before, self.saved_touches[group])
        return touches

    def begins_life(self, touches_before: np.ndarray, ttl_ms: int) -> np.ndarray:
        """Per row: True if its key's state has expired before it."""
        is_known = touches_before != NEVER_TOUCHED
        latest = np.where(is_known, touches_before, 0) + ttl_ms
        begins: np.ndarray = is_known & (self.times > latest)
        return begins

    def firsts(self, numbers: np.ndarray) -> pa.Table:
        """The first row of each of these keys: its key columns are those of all rows of the key."""
        return self.rows.take(pa.array(self.starts[numbers]))

    def state_rows(
        self,
        numbers: np.ndarray,
        touches: np.ndarray,
        version: int,
        states: Mapping[str, pa.Array | pa.ChunkedArray],
        schema: pa.Schema,
    ) -> pa.Table:
        """Builds the state rows of these keys for a step's delta.

        Args:
            touches: one for each of `numbers`.
            states: the operator's own columns, with a value for each of `numbers`.
            schema: `Operator.state_schema`.
        """
        firsts = self.firsts(numbers)
        own = {
            TIME_COLUMN: pa.array(touches, pa.int64()),
            VERSION_COLUMN: pa.array(np.full(len(numbers), version)),
            **states,
        }
        columns = [own[name] if name in own else firsts.column(name) for name in schema.names]
        return pa.Table.from_arrays(columns, schema=schema)


def saved_rows(
    rows: pa.Table, state: StateReader, schema: pa.Schema, evicted_until_ms: int | None
) -> pa.Table:
    """Returns the saved rows of keys with rows in this step, and of keys to be evicted.

    Args:
        schema: the schema of the state.
        evicted_until_ms: last touch up to which keys are evicted; None: no key.
    """
    hashes = rows.column(HASH_COLUMN).to_numpy()
    if evicted_until_ms is not None:
        # Some were touched again since then; `find` returns their newest version.
        hashes = np.append(hashes, state.due(evicted_until_ms).column(HASH_COLUMN).to_numpy())
    if len(hashes) == 0:
        return schema.empty_table()
    return state.find(distinct(hashes))


def eviction_watermarks(touches: np.ndarray, ttl_ms: int) -> np.ndarray:
    """Watermark of each eviction: the first one under which the key has expired."""
    watermarks: np.ndarray = touches + ttl_ms + 1
    return watermarks


def is_up_to(times: np.ndarray, until_ms: int | None) -> np.ndarray:
    """Per time: True if it is at most `until_ms`; False for all if that is None."""
    return np.zeros(len(times), bool) if until_ms is None else times <= until_ms
