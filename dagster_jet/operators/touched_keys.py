"""Keys touched by a step: their rows in order, their saved rows, their last touches.

Each row of a key that is not late touches it. Its *last touch* is the greatest event time of its
rows so far and never decreases. A key's saved row expires by its last touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
)
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct, order_by


@dataclass(frozen=True)
class TouchedKeys:
    """Rows of a step, grouped by key, in the order in which functions get them."""

    rows: pa.Table
    """Rows grouped by key; within a key by event time, then by arrival."""
    starts: np.ndarray
    """Per key: its rows are `rows[start:stop]`."""
    stops: np.ndarray
    touches: np.ndarray
    """Last touch per key."""
    saved_touches: np.ndarray
    """Last touch per key before this step; for a new key the smallest int64."""
    saved: pa.Table
    """Saved row per key; nulls for a new key."""
    untouched: pa.Table
    """Saved rows of other keys."""

    @classmethod
    def of(cls, keys: Sequence[str], saved: pa.Table, rows: pa.Table) -> TouchedKeys:
        codes, saved_codes = key_codes(keys, rows, saved)  # in order of arrival
        order = order_by(codes, event_times(rows))
        rows, codes = rows.take(pa.array(order)), codes[order]
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        stops = np.append(starts[1:], len(codes))[: len(starts)]
        place_of = np.full(len(saved_codes) + len(codes), -1)
        place_of[saved_codes] = np.arange(len(saved_codes))
        places = place_of[codes[starts]]
        new = places < 0
        is_untouched = np.ones(len(saved_codes), bool)
        is_untouched[places[~new]] = False
        before = saved.take(pa.array(places, mask=new))
        never = np.iinfo(np.int64).min
        saved_touches = before.column(TIME_COLUMN).fill_null(never).to_numpy()
        return cls(
            rows,
            starts,
            stops,
            np.maximum(saved_touches, event_times(rows)[stops - 1]),
            saved_touches,
            before,
            saved.filter(pa.array(is_untouched)),
        )

    def touch(self, number: int, last: int | None) -> int:
        """Last touch of a key whose last row is row `last`; None: it has no row in this step."""
        saved = int(self.saved_touches[number])
        if last is None:
            return saved
        return max(saved, int(self.rows.column(TIME_COLUMN)[last].as_py()))

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


def eviction_watermarks(touches: np.ndarray, after_ms: int, ttl_ms: int) -> np.ndarray:
    """Watermark of each eviction. At the end of the input all keys expire; it is then the first
    watermark under which the key would have expired."""
    if after_ms == FINAL_WATERMARK_MS:
        watermarks: np.ndarray = touches + ttl_ms + 1
        return watermarks
    return np.full(len(touches), after_ms)


def is_up_to(times: np.ndarray, until_ms: int | None) -> np.ndarray:
    """Per time: True if it is at most `until_ms`; False for all if that is None."""
    return np.zeros(len(times), bool) if until_ms is None else times <= until_ms
