"""Windows by count that overlap: each `slide` rows of a key one aggregate of the last `size` rows.

    SlidingCountWindows(("symbol",), 100, aggregation, "at", slide=10)

Window w has the rows w * slide to w * slide + size of its key, counted from 0, and is emitted with
the last of them. So of a key at most `phases` windows are open at once: window w is in phase
w mod `phases`, where it follows the one before it. The state of a key are its number of rows, and
for each phase the partials of the open window: never the rows.

At-least-once: as `CountWindows`.

Source: Flink `countWindow(size, slide)`, without its first windows, which have fewer rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.aggregates.aggregation import ROW_COUNT
from dagster_jet.operators.count_windows import WINDOW, CountWindows, ranks, with_equal_keys
from dagster_jet.operators.rows.keys import key_codes

SEEN = "__seen"
"""int64: number of rows of the key so far."""
_LAST = "__last"


@dataclass(frozen=True)
class SlidingCountWindows(CountWindows):
    """(states, rows) -> (results, changed states)."""

    slide: int = 1

    @property
    def phases(self) -> int:
        return -(-self.size // self.slide)

    def state_columns(self, rows: pa.Schema) -> pa.Schema:
        open_window = super().state_columns(rows)
        fields = [f.with_name(_of(p, f.name)) for p in range(self.phases) for f in open_window]
        return pa.schema([pa.field(SEEN, pa.int64()), *fields])

    def output_schema(self, rows: pa.Schema) -> pa.Schema:
        return CountWindows(self.keys, self.size, self.aggregation, self.time).output_schema(rows)

    def __call__(self, state: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        state, rows = (with_equal_keys(table, self.keys) for table in (state, rows))
        seen = state.column(SEEN).fill_null(0).to_numpy()
        of_state, of_rows = key_codes(self.keys, state, rows)
        before = np.zeros(state.num_rows + rows.num_rows, np.int64)
        before[of_state] = seen
        numbers = before[of_rows] + ranks(of_rows)
        arrived = np.bincount(of_rows, minlength=len(before))[of_state]
        changed = {name: state.column(name) for name in self.keys}
        changed[SEEN] = pa.array(seen + arrived)
        full = []
        for phase in range(self.phases):
            closed, still_open = self._phase(phase, state, seen, rows, numbers)
            full.append(closed)
            changed |= {_of(phase, n): still_open.column(n) for n in still_open.column_names}
        results = self._results(pa.concat_tables(full).sort_by(_LAST))
        return results, pa.table([changed[n] for n in state.column_names], state.column_names)

    def _phase(
        self, phase: int, state: pa.Table, seen: np.ndarray, rows: pa.Table, numbers: np.ndarray
    ) -> tuple[pa.Table, pa.Table]:
        """Windows that are full now, with the number of their last row, and the open window of each
        key of `state`, in its order."""
        stride = self.phases * self.slide
        places = numbers - phase * self.slide
        inside = (places >= 0) & (places % stride < self.size)
        places, rows = places[inside], rows.filter(pa.array(inside))
        arrived = self._partials(rows, places // stride, places % stride)
        mine = [n for n in arrived.column_names if n not in (*self.keys, WINDOW)]
        known = state.select([*self.keys, *(_of(phase, n) for n in mine)])
        known = known.rename_columns([*self.keys, *mine])
        window = (seen - phase * self.slide) // stride
        known = known.append_column(WINDOW, pa.array(window)).select(arrived.column_names)
        known = known.filter(known.column(ROW_COUNT).is_valid())
        closed, still_open = self._merged(known, arrived)
        last = pc.multiply(closed.column(WINDOW), stride)
        closed = closed.append_column(_LAST, pc.add(last, phase * self.slide))
        of_state, of_open = key_codes(self.keys, state, still_open)
        place_of = np.full(state.num_rows + still_open.num_rows, -1)
        place_of[of_open] = np.arange(still_open.num_rows)
        found = place_of[of_state]
        return closed, still_open.select(mine).take(pa.array(found, mask=found < 0))


def _of(phase: int, name: str) -> str:
    return f"{name}@{phase}"
