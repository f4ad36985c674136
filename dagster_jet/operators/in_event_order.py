"""Gives an operator its rows in order of event time, once the watermark has passed them.

    InEventOrder(StatefulMap("totals", ...))

A row waits in the state until no earlier row can come: time < watermark (strict). Then all rows
that have waited long enough are passed on, by event time, rows of one time in order of arrival. So
the results do not depend on how the rows are divided into steps. Rows before the watermark are
late: dropped and counted. The watermark is in milliseconds, the order in microseconds.

Saved: the rows of the inner operator, and the waiting rows, which have `ROW_COLUMN`. Both have the
time by which they expire: a waiting row its event time, a row of the inner operator its own time
plus the time to live. A start computes these times again, because the time to live may be another
one now. A waiting row has the complement of its key's hash, so that the inner operator's look-ups
do not read it.

The cost: each row is written to the state once and read from it once, and results come later by the
allowed lag.

At-least-once: as the inner operator.

Source: event-time sorting of Beam (`RequiresTimeSortedInput`) and of Flink's `CEP` operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dagster_jet.operators.lateness import drop_late, event_times, micros_of
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    Intervals,
    Operator,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.row_operator import RowOperator
from dagster_jet.operators.rows.sorting import order_by
from dagster_jet.operators.user.spark_processor import SparkProcessor

EXPIRY_COLUMN = "__expiry"
"""int64 ms: a row expires when the watermark is past this time."""
ROW_COLUMN = "__row"
"""struct: the stream's columns of a waiting row; null in rows of the inner operator."""

_NEVER_MS = 10**17
"""Time to live of rows that never expire: beyond every watermark."""


@dataclass(frozen=True)
class InEventOrder(Operator):
    """Operator with one input, that of the inner operator."""

    inner: RowOperator
    time: str | None = None
    """The stream's column with the event time, whose microseconds order the rows of one ms."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of the state that identify a row."""
        return self.inner.keys

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        return self.inner.input_schemas

    @property
    def state_schema(self) -> pa.Schema:
        row = pa.struct([field.with_nullable(True) for field in self.inner.row_schema])
        own = (
            pa.field(EXPIRY_COLUMN, pa.int64()),
            pa.field(ARRIVAL_COLUMN, pa.int64()),
            pa.field(ROW_COLUMN, row),
        )
        return pa.schema([*self.inner.state_schema, *own])

    @property
    def result_schema(self) -> pa.Schema:
        return self.inner.result_schema

    @property
    def time_column(self) -> str:
        return EXPIRY_COLUMN

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        states = self.inner.merge([without_waiting(table) for table in tables])
        return pa.concat_tables([states, *map(rows_that_wait, tables)])

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        kept = self.inner.without_tombstones(without_waiting(merged))
        return pa.concat_tables([kept, rows_that_wait(merged)])

    def expired_until(self, watermark_ms: int | None) -> int | None:
        return None if watermark_ms is None else watermark_ms - 1

    def with_expiry(self, restored: pa.Table, expired_until_ms: int | None) -> pa.Table:
        expiry = self._expiry(restored)
        if expired_until_ms is not None:
            # A shorter time to live is over with the next watermark, which evicts the state.
            expiry = np.maximum(expiry, expired_until_ms + 1)
        waits = restored.column(ROW_COLUMN).is_valid().to_numpy()
        expiry = np.where(waits, event_times(restored), expiry)
        place = restored.schema.get_field_index(EXPIRY_COLUMN)
        return restored.set_column(place, restored.schema.field(place), pa.array(expiry))

    def _expiry(self, rows: pa.Table) -> np.ndarray:
        """Times by which rows of the inner operator expire."""
        ttl_ms = self.inner.ttl_ms
        expiry: np.ndarray = event_times(rows) + (_NEVER_MS if ttl_ms is None else ttl_ms)
        return expiry

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
            replace(given, arrived=(released,)), _InnerState(self, state, self.inner_rows(due))
        )
        kept = self._waiting_rows(rows.filter(pa.array(waits)), given.version)
        delta = pa.concat_tables([self._state_rows(inner.delta), kept])
        return replace(inner, delta=delta, rows_in=arrived.num_rows, late=late)

    def commit(self, given: StepInput, state: StateReader) -> None:
        """`SparkProcessor.commit`."""
        assert isinstance(self.inner, SparkProcessor)
        self.inner.commit(given, _InnerState(self, state, self.inner.state_schema.empty_table()))

    @property
    def shares_rows(self) -> bool:
        return self.inner.shares_rows

    def shared_rows(self, state: pa.Table, shard: int) -> pa.Table:
        return self.inner.shared_rows(state, shard)

    def _in_order(self, arrived: pa.Table, waited: pa.Table, version: int) -> pa.Table:
        """Rows by event time and arrival, in the schema of the input."""
        (schema,) = self.inner.input_schemas
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
        times, micros = event_times(rows), self._micros(rows)
        if micros.any():
            times = times * 1_000 + micros  # one column is sorted faster than two
        order = order_by(
            times,
            np.append(versions, np.full(arrived.num_rows, version)),
            rows.column(ARRIVAL_COLUMN).to_numpy(),
        )
        place = schema.get_field_index(ARRIVAL_COLUMN)
        numbers = pa.array(np.arange(rows.num_rows))
        return rows.take(pa.array(order)).set_column(place, schema.field(place), numbers)

    def _micros(self, rows: pa.Table) -> np.ndarray:
        return micros_of(rows, self.time)

    def _waiting_rows(self, rows: pa.Table, version: int) -> pa.Table:
        """Rows of the input as rows of the state."""
        fields = list(self.state_schema.field(ROW_COLUMN).type)
        values = [rows.column(field.name).combine_chunks() for field in fields]
        own = {
            HASH_COLUMN: pa.array(~rows.column(HASH_COLUMN).to_numpy()),
            VERSION_COLUMN: pa.array(np.full(rows.num_rows, version)),
            EXPIRY_COLUMN: rows.column(TIME_COLUMN),
            ROW_COLUMN: pa.StructArray.from_arrays(values, fields=fields),
        }
        there = set(rows.column_names)  # address, arrival and keys
        columns = [
            own[field.name]
            if field.name in own
            else rows.column(field.name)
            if field.name in there
            else pa.nulls(rows.num_rows, field.type)
            for field in self.state_schema
        ]
        return pa.Table.from_arrays(columns, schema=self.state_schema)

    def inner_rows(self, state: pa.Table) -> pa.Table:
        """The inner operator's rows of a state, as it has written them."""
        return without_waiting(state).select(self.inner.state_schema.names)

    def _state_rows(self, rows: pa.Table) -> pa.Table:
        """Rows of the inner operator as rows of the state."""
        *_, arrival, row = self.state_schema
        nulls = [pa.nulls(rows.num_rows, field.type) for field in (arrival, row)]
        columns = [*rows.columns, pa.array(self._expiry(rows)), *nulls]
        return pa.Table.from_arrays(columns, schema=self.state_schema)


@dataclass(frozen=True)
class _InnerState:
    """The inner operator's rows in a state."""

    outer: InEventOrder
    state: StateReader
    expired: pa.Table
    """Rows that the step's watermark expires."""

    def due(self, until_ms: int) -> pa.Table:
        """Only called with the time up to which the step's watermark expires rows."""
        return self.expired

    def find(self, hashes: np.ndarray, within: Intervals | None = None) -> pa.Table:
        assert within is None, "the inner operator looks up whole keys"
        return self.outer.inner_rows(self.state.find(hashes))

    def scan(self) -> pa.Table:
        return self.outer.inner_rows(self.state.scan())


def rows_that_wait(state: pa.Table) -> pa.Table:
    """Rows of a state that wait for the watermark."""
    return state.filter(state.column(ROW_COLUMN).is_valid())


def without_waiting(state: pa.Table) -> pa.Table:
    """Rows of a state that belong to the inner operator."""
    waits = state.column(ROW_COLUMN)
    return state if waits.null_count == len(waits) else state.filter(waits.is_null())
