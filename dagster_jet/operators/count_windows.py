"""Windows by count: every `size` rows of a key give one aggregate.

    StatefulMapInBatches("trades", ("symbol",), ..., function=CountWindows(("symbol",), 100, ...))

It is a function over tables (`stateful_map_batches.py`), in order of event time or of arrival. The
state of a key are the partials of its open window, and the number of its rows: never the rows. The
place of a row in its window stands for its time, so `first` and `last` are by order of the rows.
At the end of the input open windows are emitted (`rest`), or dropped.

At-least-once: as `StatefulMapInBatches`: a window may be emitted again, in order of arrival with
other rows.

Source: Flink `countWindow`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.aggregates.aggregation import ROW_COUNT, Aggregation
from dagster_jet.operators.partials.partial import Merger
from dagster_jet.operators.rows.casting import cast_rows
from dagster_jet.operators.rows.keys import key_codes, one_zero_and_nan

NEWEST = "__newest"
"""Newest event time of the open window, as the stream has it."""
WINDOW = "__window"
"""int64: number of a window of a key; in the operators that are not sliding, from the open one."""


@dataclass(frozen=True)
class CountWindows:
    """(states, rows) -> (results, changed states)."""

    keys: tuple[str, ...]
    size: int
    aggregation: Aggregation
    time: str | None
    """The event-time column; None: the stream has none."""

    @property
    def _newest(self) -> tuple[tuple[str, Merger], ...]:
        return () if self.time is None else ((NEWEST, "max"),)

    def state_columns(self, rows: pa.Schema) -> pa.Schema:
        """Schema of a key's state, for rows in this schema."""
        none = np.zeros(0, np.int64)
        partials = self._partials(rows.empty_table(), none, none)
        names = [n for n in partials.column_names if n not in (*self.keys, WINDOW)]
        return pa.schema([partials.schema.field(name).with_nullable(True) for name in names])

    def output_schema(self, rows: pa.Schema) -> pa.Schema:
        """Keys, the event time if there is one, aggregates."""
        own = [*self.keys, *([] if self.time is None else [self.time])]
        results = self.aggregation.result_fields(self.state_columns(rows))
        return pa.schema([*(rows.field(name) for name in own), *results])

    def __call__(self, state: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        state, rows = (with_equal_keys(table, self.keys) for table in (state, rows))
        counts = state.column(ROW_COUNT).fill_null(0).to_numpy()
        of_state, of_rows = key_codes(self.keys, state, rows)
        open_rows = np.zeros(state.num_rows + rows.num_rows, np.int64)
        open_rows[of_state] = counts
        places = open_rows[of_rows] + ranks(of_rows)
        arrived = self._partials(rows, places // self.size, places % self.size)
        known = state.filter(pa.array(counts > 0))
        zeros = pa.array(np.zeros(known.num_rows, np.int64))
        known = known.append_column(WINDOW, zeros).select(arrived.column_names)
        full, still_open = self._merged(known, arrived)
        rest = still_open.select(state.column_names)
        of_state, of_rest = key_codes(self.keys, state, rest)
        emptied = state.filter(pa.array(~np.isin(of_state, of_rest))).select(list(self.keys))
        changed = pa.concat_tables([rest, emptied], promote_options="default")
        return self._results(full.sort_by(WINDOW)), changed

    def rest(self, states: pa.Table) -> pa.Table:
        """Results of windows that have no further rows: those that are open at the end."""
        return self._results(states)

    def _merged(self, known: pa.Table, arrived: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Merges partials by key and window; returns those of full and those of open windows."""
        both = pa.concat_tables([known, cast_rows(arrived, known.schema)])
        merged = self.aggregation.merge(both, [*self.keys, WINDOW], self._newest)
        is_full = pc.equal(merged.column(ROW_COUNT), self.size)
        return merged.filter(is_full), merged.filter(pc.invert(is_full))

    def _partials(self, rows: pa.Table, windows: np.ndarray, places: np.ndarray) -> pa.Table:
        """Partials by key and window.

        Args:
            windows: of each row.
            places: the place of each row in its window.
        """
        rows = rows.append_column(WINDOW, pa.array(windows))
        if self.time is not None:
            rows = rows.append_column(NEWEST, rows.column(self.time))
        group, within = [*self.keys, WINDOW], pa.array(places)
        partials = self.aggregation.first_stage(rows, within, group, self._newest)
        return self.aggregation.admit(partials)

    def _results(self, full: pa.Table) -> pa.Table:
        columns = dict(zip(self.keys, full.select(list(self.keys)).columns, strict=True))
        if self.time is not None:
            columns[self.time] = full.column(NEWEST)
        names = (name for name, _ in self.aggregation.aggregates)
        columns |= zip(names, self.aggregation.finish(full), strict=True)
        return pa.table(columns)


def with_equal_keys(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Gives equal keys the same bit pattern: Arrow groups by it."""
    for key in keys:
        if pa.types.is_floating(table.schema.field(key).type):
            place = table.schema.get_field_index(key)
            column = one_zero_and_nan(table.column(key))
            table = table.set_column(place, table.schema.field(place), column)
    return table


def ranks(codes: np.ndarray) -> np.ndarray:
    """For each row, how many rows of its key are before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    places = np.arange(len(codes))
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(codes)]
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return ranks
