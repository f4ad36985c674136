"""Deduplication: keeps the first of the rows of one key that are close together in event time.

A row is a duplicate if a kept row of its key is at most `within` away: |time - kept time| <=
within. Rows are compared in order of arrival, so the results do not depend on how they are divided
into steps. Only kept rows count: with `within` 10, of times 0, 8, 16 the first and the last stay,
because 8 was not kept. Null is a key like any other.

Saved: the key and the time of every kept row that a later row could be compared with, that is until
time + within < watermark (strict). Rows before the watermark are late: dropped and counted.

At-least-once: a row that was kept between the snapshot and the crash is emitted again after each
restart; later duplicates of it are still recognised. Exactly-once: never emitted again.

Source: Jet's documentation builds this from `filterStateful` with a time to live, which forgets a
key by its *last* row. Here the distance to the kept row counts, so a key that never pauses is
emitted once per `within`, not once for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.lateness import drop_late, event_times
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.row_operator import RowOperator
from dagster_jet.operators.rows.event_order import Timeline
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct, order_by


@dataclass(frozen=True)
class Deduplicate(RowOperator):
    """Operator with one input. Results are the kept rows, unchanged, in order of arrival."""

    keys: tuple[str, ...]
    row_schema: pa.Schema
    """The stream's columns, `keys` among them."""
    within_ms: int

    @property
    def ttl_ms(self) -> int:
        """How long after its event time a row is saved."""
        return self.within_ms

    @property
    def state_schema(self) -> pa.Schema:
        return pa.schema([*ADDRESS, *(self.row_schema.field(key) for key in self.keys)])

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        return pa.concat_tables(tables)

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        rows, late = drop_late(arrived, given.before_ms)
        kept = rows.take(pa.array(self._first_rows(rows, state)))
        times = event_times(kept)
        expired = self.expired_until(given.after_ms)
        delta = kept.select(self.state_schema.names)
        if expired is not None:
            delta = delta.filter(pa.array(times > expired))
        return Step(
            results=kept.select(self.row_schema.names),
            delta=delta,
            rows_in=arrived.num_rows,
            late=late,
        )

    def _first_rows(self, rows: pa.Table, state: StateReader) -> np.ndarray:
        """Row numbers of the rows that are not duplicates, in order of arrival."""
        if rows.num_rows == 0:
            return np.empty(0, np.int64)
        found = state.find(distinct(rows.column(HASH_COLUMN).to_numpy()))
        known_codes, codes = key_codes(self.keys, found, rows)
        times = event_times(rows)
        known = Timeline(known_codes, event_times(found))
        start, stop = known.between(codes, times - self.within_ms, times + self.within_ms)
        unseen = np.flatnonzero(start == stop)
        unseen = unseen[order_by(rows.column(ARRIVAL_COLUMN).to_numpy()[unseen])]
        first: np.ndarray = unseen[Timeline(codes[unseen], times[unseen]).apart(self.within_ms)]
        return first
