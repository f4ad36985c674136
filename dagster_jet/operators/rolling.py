"""Rolling aggregates: an updated row for each key with new input, over all time.

State is merged: a step appends the arrived partials and reads only the touched keys, by hash.
    Writing a new version of each touched key's total would cost more, above all for lists and sets,
    whose totals are large compared with the input.

At-least-once: after a restart the rows between the snapshot and the crash are counted again, and
stay counted twice because no window ever closes. Updates emitted since the snapshot are emitted
again; a reader who keeps the last row per key sees no other difference.
Source: Hazelcast Jet `rollingAggregate` (`TransformStatefulP`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from dagster_jet.operators.aggregates.aggregation import Aggregation, row_count
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.partials_operator import PartialsOperator
from dagster_jet.operators.rows.casting import cast_column, cast_rows
from dagster_jet.operators.rows.sorting import distinct
from dagster_jet.operators.window_results import TIMESTAMP, check_times, timestamps

_TOUCHED = "__touched"


@dataclass(frozen=True)
class RollingAggregate(PartialsOperator):
    """Operator without lateness: no row is late and no state expires."""

    input_schema: pa.Schema
    """`__partition`, `__hash`, keys, `__time` (newest event, or 0), partials, `__rows`."""
    keys: tuple[str, ...]
    aggregation: Aggregation
    result_time: str | None = None
    """Name of a result column with the key's newest event time, for later event-time stages."""

    @property
    def time_column(self) -> str:
        return TIME_COLUMN

    @cached_property
    def result_schema(self) -> pa.Schema:
        """Keys, the event time if `result_time` is set, aggregates."""
        fields = [self.state_schema.field(key) for key in self.keys]
        if self.result_time is not None:
            fields.append(pa.field(self.result_time, TIMESTAMP))
        return pa.schema([*fields, *self.aggregation.result_fields(self.state_schema)])

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """One row per key."""
        table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
        merged = self._merged(table).select(self.state_schema.names)
        return cast_rows(merged, self.state_schema)

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        event_times(arrived)  # refuses rows without one
        rows_in = row_count(arrived)
        delta = self.merge([self.aggregation.admit(arrived)])
        if delta.num_rows == 0:
            return Step(self.result_schema.empty_table(), delta, rows_in)
        found = state.find(distinct(delta.column(HASH_COLUMN).to_numpy()))
        both = pa.concat_tables([_marked(delta, touched=1), _marked(found, touched=0)])
        totals = self._merged(both, touched=True)
        # A key found only because another key has the same hash was not touched.
        totals = totals.filter(pa.array(totals.column(_TOUCHED).to_numpy() == 1))
        return Step(self._results(totals), delta, rows_in)

    def expired_until(self, watermark_ms: int | None) -> int | None:
        return None

    def _merged(self, table: pa.Table, *, touched: bool = False) -> pa.Table:
        others = [(TIME_COLUMN, "max"), (_TOUCHED, "max")] if touched else [(TIME_COLUMN, "max")]
        return self.aggregation.merge(table, [PARTITION_COLUMN, HASH_COLUMN, *self.keys], others)

    def _results(self, totals: pa.Table) -> pa.Table:
        columns = [totals.column(key) for key in self.keys]
        if self.result_time is not None:
            newest = totals.column(TIME_COLUMN).to_numpy()
            check_times(newest)
            columns.append(timestamps(newest))
        columns += self.aggregation.finish(totals)
        arrays = [cast_column(c, f.type) for c, f in zip(columns, self.result_schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.result_schema)


def _marked(table: pa.Table, *, touched: int) -> pa.Table:
    return table.append_column(_TOUCHED, pa.repeat(pa.scalar(touched, pa.int8()), table.num_rows))


__all__ = ["RollingAggregate"]
