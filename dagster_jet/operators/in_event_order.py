"""Gives an operator its rows in order of event time, once the watermark has passed them.

    InEventOrder(StatefulMap("totals", ...))

A row waits in the state until no earlier row can come: time < watermark (strict). Then all rows
that have waited long enough are passed on, by event time, rows of one time in order of arrival. So
the results do not depend on how the rows are divided into steps. Rows before the watermark are
late: dropped and counted.

Saved: the rows of the inner operator, and the waiting rows, which have `ROW_COLUMN`. `__time` is
the time by which a row expires: the event time of a waiting row; for the inner operator's rows
their own time plus a constant, so that one watermark expires both. A waiting row has the complement
of its key's hash, so that the inner operator's look-ups do not read it.

The cost: each row is written to the state once and read from it once, and results come later by the
allowed lag.

At-least-once: as the inner operator.

Source: event-time sorting of Beam (`RequiresTimeSortedInput`) and of Flink's `CEP` operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from dagster_jet.operators.lateness import drop_late, event_times
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    Intervals,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.rows.sorting import order_by
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches

ROW_COLUMN = "__row"
"""struct: the stream's columns of a waiting row; null in rows of the inner operator."""

_NEVER_MS = 10**17
"""Added to the times of rows that never expire: beyond every watermark."""


@dataclass(frozen=True)
class InEventOrder:
    """Operator with one input, that of the inner operator."""

    inner: StatefulMap | StatefulMapInBatches

    @property
    def keys(self) -> tuple[str, ...]:
        return self.inner.keys

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        return self.inner.input_schemas

    @property
    def state_schema(self) -> pa.Schema:
        row = pa.struct([field.with_nullable(True) for field in self.inner.row_schema])
        own = (pa.field(ARRIVAL_COLUMN, pa.int64()), pa.field(ROW_COLUMN, row))
        return pa.schema([*self.inner.state_schema, *own])

    @property
    def result_schema(self) -> pa.Schema:
        return self.inner.result_schema

    @property
    def time_column(self) -> str:
        return TIME_COLUMN

    @cached_property
    def _lives_for_ms(self) -> int:
        """How long after its time a row of the inner operator expires."""
        expired = self.inner.expired_until(0)
        return _NEVER_MS if expired is None else -1 - expired

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        waiting = [rows_that_wait(table) for table in tables]
        states = [self._inner_rows(without_waiting(table)) for table in tables]
        return pa.concat_tables([self._outer_rows(self.inner.merge(states)), *waiting])

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        kept = self.inner.without_tombstones(self._inner_rows(without_waiting(merged)))
        return pa.concat_tables([self._outer_rows(kept), rows_that_wait(merged)])

    def expired_until(self, watermark_ms: int | None) -> int | None:
        return None if watermark_ms is None else watermark_ms - 1

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        rows, late = drop_late(arrived, given.before_ms)
        passed = self.expired_until(given.after_ms)
        if passed is None:
            due, waits = self.state_schema.empty_table(), np.full(rows.num_rows, True)
        else:
            due, waits = state.due(passed), event_times(rows) > passed
        released = self._in_order(rows.filter(pa.array(~waits)), rows_that_wait(due), given.version)
        inner = self.inner.step(
            replace(given, arrived=(released,)), _InnerState(self, state, without_waiting(due))
        )
        kept = self._waiting_rows(rows.filter(pa.array(waits)), given.version)
        delta = pa.concat_tables([self._outer_rows(inner.delta), kept])
        return Step(inner.results, delta, arrived.num_rows, late, inner.rejected)

    def _in_order(self, arrived: pa.Table, waited: pa.Table, version: int) -> pa.Table:
        """Rows by event time and arrival, in the schema of the input."""
        (schema,) = self.input_schemas
        row = waited.column(ROW_COLUMN).combine_chunks()
        hashes = pa.array(~waited.column(HASH_COLUMN).to_numpy())
        columns = {
            **dict(zip(waited.column_names, waited.columns, strict=True)),
            HASH_COLUMN: hashes,
            **dict(zip(row.type.names, row.flatten(), strict=True)),
        }
        before = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
        versions = waited.column(VERSION_COLUMN).to_numpy()
        rows = pa.concat_tables([before, arrived])
        order = order_by(
            event_times(rows),
            np.append(versions, np.full(arrived.num_rows, version)),
            rows.column(ARRIVAL_COLUMN).to_numpy(),
        )
        place = schema.get_field_index(ARRIVAL_COLUMN)
        numbers = pa.array(np.arange(rows.num_rows))
        return rows.take(pa.array(order)).set_column(place, schema.field(place), numbers)

    def _waiting_rows(self, rows: pa.Table, version: int) -> pa.Table:
        """Rows of the input as rows of the state."""
        fields = list(self.state_schema.field(ROW_COLUMN).type)
        values = [rows.column(field.name).combine_chunks() for field in fields]
        own = {
            HASH_COLUMN: pa.array(~rows.column(HASH_COLUMN).to_numpy()),
            VERSION_COLUMN: pa.array(np.full(rows.num_rows, version)),
            ROW_COLUMN: pa.StructArray.from_arrays(values, fields=fields),
        }
        names = (PARTITION_COLUMN, TIME_COLUMN, ARRIVAL_COLUMN, *self.keys)
        taken = {name: rows.column(name) for name in names} | own
        columns = [
            taken[field.name] if field.name in taken else pa.nulls(rows.num_rows, field.type)
            for field in self.state_schema
        ]
        return pa.Table.from_arrays(columns, schema=self.state_schema)

    def _inner_rows(self, rows: pa.Table) -> pa.Table:
        """Rows of the state as the inner operator has written them."""
        return _moved(rows.select(self.inner.state_schema.names), -self._lives_for_ms)

    def _outer_rows(self, rows: pa.Table) -> pa.Table:
        own = list(self.state_schema)[len(rows.schema) :]
        columns = [*_moved(rows, self._lives_for_ms).columns]
        columns += [pa.chunked_array([pa.nulls(rows.num_rows, field.type)]) for field in own]
        return pa.Table.from_arrays(columns, schema=self.state_schema)


@dataclass(frozen=True)
class _InnerState:
    """The inner operator's rows in a state."""

    outer: InEventOrder
    state: StateReader
    expired: pa.Table
    """Those that the step's watermark expires."""

    def due(self, until_ms: int) -> pa.Table:
        """Only called with the time up to which the step's watermark expires rows."""
        return self.outer._inner_rows(self.expired)

    def find(self, hashes: np.ndarray, within: Intervals | None = None) -> pa.Table:
        assert within is None, "the inner operator looks up whole keys"
        return self.outer._inner_rows(without_waiting(self.state.find(hashes)))

    def scan(self) -> pa.Table:
        return self.outer._inner_rows(without_waiting(self.state.scan()))


def rows_that_wait(state: pa.Table) -> pa.Table:
    """Rows of a state that wait for the watermark."""
    return state.filter(state.column(ROW_COLUMN).is_valid())


def without_waiting(state: pa.Table) -> pa.Table:
    """Rows of a state that belong to the inner operator."""
    waits = state.column(ROW_COLUMN)
    return state if waits.null_count == len(waits) else state.filter(waits.is_null())


def _moved(rows: pa.Table, by_ms: int) -> pa.Table:
    place = rows.schema.get_field_index(TIME_COLUMN)
    times = pa.array(event_times(rows) + by_ms)
    return rows.set_column(place, rows.schema.field(place), times)
