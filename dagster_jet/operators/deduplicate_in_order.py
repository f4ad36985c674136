"""Deduplication in order of event time: one row of each group of rows of one key.

The first row of a key begins a group. Rows of the key up to `within` later belong to it: times 0, 8
and 16 are two groups with `within` 10, {0, 8} and {16}. Rows come from `InEventOrder`, so groups
do not depend on how the rows are divided into steps. `keep="first"` emits the row that begins a
group at once, `keep="last"` the last row of a group when no further row can belong to it: first
time + within < watermark (strict). Rows of one time are in order of arrival. Null is a key like any
other.

Saved, versioned: per key the group that rows can still belong to, as the time of its first row, and
with `keep="last"` its last row so far.

At-least-once: results between the snapshot and the crash are emitted again after each restart.

Source: `deduplicate.py`, for streams in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.row_operator import RowOperator
from dagster_jet.operators.rows.event_order import Timeline
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct

LAST_ROW_COLUMN = "__last_row"
"""struct: the stream's columns of a group's last row so far."""


@dataclass(frozen=True)
class DeduplicateInOrder(RowOperator):
    """Operator with one input, whose rows come in order of event time. Results are rows of it."""

    keys: tuple[str, ...]
    row_schema: pa.Schema
    """The stream's columns, `keys` among them."""
    within_ms: int
    keep: Literal["first", "last"] = "first"

    @property
    def ttl_ms(self) -> int:
        """How long after its first row a group is saved."""
        return self.within_ms

    @property
    def state_schema(self) -> pa.Schema:
        keys = (self.row_schema.field(key) for key in self.keys)
        row = pa.struct([field.with_nullable(True) for field in self.row_schema])
        last = [] if self.keep == "first" else [pa.field(LAST_ROW_COLUMN, row)]
        return pa.schema([*ADDRESS, pa.field(VERSION_COLUMN, pa.int64()), *keys, *last])

    def step(self, given: StepInput, state: StateReader) -> Step:
        (rows,) = given.arrived
        groups = self._groups(rows, state, self.expired_until(given.after_ms))
        known = groups.known.num_rows
        if self.keep == "first":
            is_new = groups.first >= known
            results = rows.take(pa.array(groups.first[is_new] - known))
        else:
            is_new = groups.last >= known
            results = self._last_rows(groups, rows)
        saved = np.flatnonzero(is_new & ~groups.is_over)
        return Step(
            results=results.select(self.row_schema.names),
            delta=self._state_rows(groups, rows, saved, given.version),
            rows_in=rows.num_rows,
        )

    def _groups(self, rows: pa.Table, state: StateReader, expired_ms: int | None) -> _Groups:
        """Groups of the keys that have rows, and with `keep="last"` those that are over."""
        hashes = rows.column(HASH_COLUMN).to_numpy()
        if self.keep == "last" and expired_ms is not None:
            due = state.due(expired_ms).column(HASH_COLUMN).to_numpy()
            hashes = np.append(hashes, due)
        known = self.state_schema.empty_table()
        if len(hashes):
            known = state.find(distinct(hashes))
        codes = np.concatenate(key_codes(self.keys, known, rows))
        times = np.append(event_times(known), event_times(rows))
        line = Timeline(codes, times)
        first = line.spaced(self.within_ms)
        begins = np.zeros(len(codes), bool)
        begins[first] = True
        places = np.flatnonzero(begins[line.order])
        last = line.order[np.append(places[1:], len(codes))[: len(first)] - 1]
        is_over = np.zeros(len(first), bool)
        if expired_ms is not None:
            is_over = times[first] <= expired_ms
        return _Groups(known, first, last, times[first], is_over)

    def _last_rows(self, groups: _Groups, rows: pa.Table) -> pa.Table:
        """The last rows of the groups that are over."""
        saved = groups.known.column(LAST_ROW_COLUMN).combine_chunks()
        before = pa.Table.from_arrays(saved.flatten(), schema=self.row_schema)
        both = pa.concat_tables([before, rows.select(self.row_schema.names)])
        return both.take(pa.array(groups.last[groups.is_over]))

    def _state_rows(
        self, groups: _Groups, rows: pa.Table, saved: np.ndarray, version: int
    ) -> pa.Table:
        """The saved groups. Only `keep="last"` copies whole rows."""
        place = pa.array(groups.last[saved] - groups.known.num_rows)
        own = {
            TIME_COLUMN: pa.array(groups.times[saved]),
            VERSION_COLUMN: pa.array(np.full(len(saved), version)),
        }
        if self.keep == "last":
            row = self.state_schema.field(LAST_ROW_COLUMN).type
            values = [rows.column(name).take(place).combine_chunks() for name in row.names]
            own[LAST_ROW_COLUMN] = pa.StructArray.from_arrays(values, fields=list(row))
        columns = [
            own[name] if name in own else rows.column(name).take(place)
            for name in self.state_schema.names
        ]
        return pa.Table.from_arrays(columns, schema=self.state_schema)


@dataclass(frozen=True)
class _Groups:
    """Groups of a step, by key and time. Rows are numbered: known groups first, then the step's."""

    known: pa.Table
    """Saved groups of the keys."""
    first: np.ndarray
    """Number of the row, or of the known group, that begins each group."""
    last: np.ndarray
    times: np.ndarray
    """When each begins, in ms."""
    is_over: np.ndarray
