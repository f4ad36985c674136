"""Rolling aggregates with a time to live: totals of each key since its last pause.

Rows of a key with more than the time to live between them, in event time, are in different *lives*
of the key. The state has the open lives of each key, as sessions have theirs: a row that comes out
of order may be in an older life, or join two of them. So a total depends neither on how rows are
divided into steps nor on the order in which they arrive. A life is removed when the watermark is
more than the time to live past its last row.

State is versioned: a step writes the lives of the keys that it touches.

At-least-once: after a restart the rows between the snapshot and the crash are counted again, until
the life ends. Updates emitted since the snapshot are emitted again.
Source: Flink's state TTL, judged per row in event time as in `stateful_map.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dagster_jet.operators.aggregates.aggregation import Aggregation, row_count
from dagster_jet.operators.aggregates.grouping import rows_where
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import (
    StateReader,
    Step,
    StepInput,
    with_version,
)
from dagster_jet.operators.partials_operator import VersionedPartials
from dagster_jet.operators.rows.casting import cast_column
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct
from dagster_jet.operators.session import hashes, sessions_of, timely_partials
from dagster_jet.operators.window_results import TIMESTAMP, timestamps


@dataclass(frozen=True)
class ExpiringTotals(VersionedPartials):
    """Operator that emits, for each key with rows in a step, the totals of its newest life.

    An event before the watermark is late. Changing the time to live in the code: lives in the state
    end by the new value; those that have ended stay so.
    """

    input_schema: pa.Schema
    """`__partition`, `__hash`, keys, `__first`, `__time` (last event), partials, `__rows`."""
    keys: tuple[str, ...]
    ttl_ms: int
    aggregation: Aggregation
    result_time: str
    """Name of a result column with the newest event time of the life."""
    time_lag_ms: int = 0
    """Added to event times to get the values of that column."""

    @cached_property
    def result_schema(self) -> pa.Schema:
        """Keys, the event time, aggregates."""
        fields = [self.state_schema.field(key) for key in self.keys]
        fields.append(pa.field(self.result_time, TIMESTAMP))
        return pa.schema([*fields, *self.aggregation.result_fields(self.state_schema)])

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        timely, late = timely_partials(self.aggregation, arrived, given.before_ms)
        rows_in = row_count(arrived)
        if timely.num_rows == 0:
            results, delta = self.result_schema.empty_table(), self.state_schema.empty_table()
            return Step(results, delta, rows_in, late)
        found = state.find(distinct(hashes(timely))).select(timely.column_names)
        pieces = pa.concat_tables([timely, found])
        lives = sessions_of(self.aggregation, self.keys, pieces, self._gap_ms)
        results = self._results(self._newest(lives, timely))
        ended_until = self.expired_until(given.after_ms)
        if ended_until is not None:
            lives = rows_where(lives, event_times(lives) > ended_until)
        delta = with_version(lives, given.version, self.state_schema)
        return Step(results, delta, rows_in, late)

    def expired_until(self, watermark_ms: int | None) -> int | None:
        return None if watermark_ms is None else watermark_ms - self._gap_ms

    @property
    def _gap_ms(self) -> int:
        """Smallest gap between two rows of a key after which its total begins anew."""
        return self.ttl_ms + 1

    def _newest(self, lives: pa.Table, timely: pa.Table) -> pa.Table:
        """The newest life of each key that has timely rows. Other keys may have the same hash."""
        codes, touched = key_codes(self.keys, lives, timely)
        newest = np.full(len(codes) + len(touched), np.iinfo(np.int64).min)
        times = event_times(lives)
        np.maximum.at(newest, codes, times)
        is_touched = np.zeros(len(newest), bool)
        is_touched[touched] = True
        return rows_where(lives, is_touched[codes] & (times == newest[codes]))

    def _results(self, totals: pa.Table) -> pa.Table:
        columns = [totals.column(key) for key in self.keys]
        columns.append(timestamps(event_times(totals) + self.time_lag_ms))
        columns += self.aggregation.finish(totals)
        arrays = [cast_column(c, f.type) for c, f in zip(columns, self.result_schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.result_schema)


__all__ = ["ExpiringTotals"]
