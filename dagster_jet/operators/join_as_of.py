"""Join of a stream with versions: each row with the newest version of its key at its event time.

Input 0 has the rows, input 1 the versions. A version counts from its event time on, also for rows
of that time, until the next version of its key; with `keep_ms` for at most that time. Of two
versions of one key and time the later to arrive counts. As in SQL, a null key has no version.

Rows and versions of both inputs wait for the watermark and are compared in order of event time
(`InEventOrder`), so the results do not depend on how they are divided into steps. Those before the
watermark are late: dropped and counted.

Saved: the rows and versions that wait, and per key the newest version that does not wait any more;
with `keep_ms` until the key has had neither a row nor a version for that time.

At-least-once: rows between the snapshot and the crash are joined again, each with the same version.

Source: Flink's event-time temporal join (`TemporalRowTimeJoinOperator`); `merge_asof` of pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.operator import ARRIVAL_COLUMN, TIME_COLUMN, StateReader, Step, StepInput
from dagster_jet.operators.rows.keys import key_codes, null_keys
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches

AT_COLUMN = "__at"
"""int64 ms: event time of a row or version."""
IS_VERSION_COLUMN = "__is_version"
SINCE_COLUMN = "__version_since"
"""int64 ms, in a key's state: event time of its newest version."""


@dataclass(frozen=True)
class JoinAsOf(InEventOrder):
    """Operator. Results: keys, the columns of the rows, those of the versions."""

    input_columns: tuple[pa.Schema, ...]
    """By input, keys and other columns, named as in the result."""

    @classmethod
    def of(
        cls,
        stage: str,
        key_schema: pa.Schema,
        left_schema: pa.Schema,
        right_schema: pa.Schema,
        *,
        keeps_all: bool = True,
        keep_ms: int | None = None,
    ) -> JoinAsOf:
        """
        Args:
            left_schema: the other columns of the rows.
            right_schema: those of the versions; no name is on both sides.
            keeps_all: rows without a version come out, too, with nulls.
            keep_ms: how long a version counts; None: until the next one.
        """
        keys, left, right = (
            [field.with_nullable(True) for field in schema]
            for schema in (key_schema, left_schema, right_schema)
        )
        own = [pa.field(IS_VERSION_COLUMN, pa.bool_()), pa.field(AT_COLUMN, pa.int64())]
        names = tuple(key_schema.names), tuple(left_schema.names), tuple(right_schema.names)
        inner = StatefulMapInBatches(
            stage=stage,
            keys=names[0],
            row_schema=pa.schema([*keys, *left, *right, *own]),
            output_schema=pa.schema([*keys, *left, *right]),
            state_columns=pa.schema([pa.field(SINCE_COLUMN, pa.int64()), *right]),
            function=NewestVersions(*names, keeps_all, keep_ms),
            ttl_ms=keep_ms,
        )
        return cls(inner, (pa.schema([*keys, *left]), pa.schema([*keys, *right])))

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        address = [*ADDRESS, pa.field(ARRIVAL_COLUMN, pa.int64())]
        return tuple(pa.schema([*address, *columns]) for columns in self.input_columns)

    def step(self, given: StepInput, state: StateReader) -> Step:
        rows, versions = given.arrived
        both = [self._as_inner(rows, is_version=False), self._as_inner(versions, is_version=True)]
        return super().step(replace(given, arrived=(pa.concat_tables(both),)), state)

    def _as_inner(self, table: pa.Table, *, is_version: bool) -> pa.Table:
        (schema,) = self.inner.input_schemas
        given = {
            **dict(zip(table.column_names, table.columns, strict=True)),
            AT_COLUMN: table.column(TIME_COLUMN),
            IS_VERSION_COLUMN: pa.array(np.full(table.num_rows, is_version)),
        }
        columns = [
            given[field.name] if field.name in given else pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class NewestVersions:
    """The function of `StatefulMapInBatches`."""

    keys: Sequence[str]
    left: Sequence[str]
    right: Sequence[str]
    keeps_all: bool
    keep_ms: int | None

    def __call__(self, before: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Joins the rows; returns results, and the versions that the keys have afterwards.

        Args:
            before: one version of each key, or nulls.
            rows: rows and versions; those of one key stand together, in the order of `before`.
        """
        group, rows = self._in_order(rows)
        is_version, at = (rows[name].to_numpy() for name in (IS_VERSION_COLUMN, AT_COLUMN))
        first = np.searchsorted(group, np.arange(before.num_rows))
        newest = np.maximum.accumulate(np.where(is_version, np.arange(len(group)), -1))
        is_of_rows = newest >= first[group]
        versions = self._versions(before, rows)
        place = np.where(is_of_rows, before.num_rows + newest, group)
        has_one = is_of_rows | before[SINCE_COLUMN].is_valid().to_numpy()[group]
        has_one &= ~null_keys(self.keys, rows)
        if self.keep_ms is not None:
            since = versions[SINCE_COLUMN].fill_null(0).to_numpy()
            has_one &= at - since[place] <= self.keep_ms
        results = self._joined(rows, versions, place, has_one, ~is_version)
        last = newest[np.append(first[1:], len(group)) - 1]
        changed = versions.take(pa.array(before.num_rows + last[last >= first]))
        return results, changed

    def _in_order(self, rows: pa.Table) -> tuple[np.ndarray, pa.Table]:
        """The rows of each key by time, versions before rows of their time; and the key's place."""
        (codes,) = key_codes(self.keys, rows)
        group = np.cumsum(np.append(False, codes[1:] != codes[:-1]))
        is_row = ~rows[IS_VERSION_COLUMN].to_numpy()
        order = np.lexsort((is_row, rows[AT_COLUMN].to_numpy(), group))
        return group, rows.take(pa.array(order))

    def _versions(self, before: pa.Table, rows: pa.Table) -> pa.Table:
        """The saved versions of the keys, then all rows as versions."""
        columns = [rows[name] for name in (*self.keys, AT_COLUMN, *self.right)]
        names = [*self.keys, SINCE_COLUMN, *self.right]
        return pa.concat_tables([before.select(names), pa.table(columns, names=names)])

    def _joined(
        self,
        rows: pa.Table,
        versions: pa.Table,
        place: np.ndarray,
        has_one: np.ndarray,
        wanted: np.ndarray,
    ) -> pa.Table:
        if not self.keeps_all:
            wanted &= has_one
        own = rows.filter(pa.array(wanted)).select([*self.keys, *self.left])
        found = versions.take(pa.array(place[wanted], mask=~has_one[wanted]))
        columns = [*own.columns, *found.select(self.right).columns]
        return pa.table(columns, names=[*own.column_names, *self.right])
