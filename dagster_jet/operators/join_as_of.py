"""Join of a stream with versions: each row with the newest versions of its key at its event time.

Input 0 has the rows, input 1 the versions. A version counts from its event time on, also for rows
of that time, until the next version of its subject (`NewestVersions`); with `keep_ms` for at most
that time. Times are compared in microseconds. Of two versions of one subject and time the later to
arrive counts. As in SQL, a null key has no version.

Without keys each row meets every subject: the versions are *broadcast*. Their input then has a copy
of each version for every partition, and the hash of a copy is its partition.

Rows and versions of both inputs wait for the watermark and are compared in order of event time
(`InEventOrder`), so the results do not depend on how they are divided into steps. Those before the
watermark are late: dropped and counted.

Saved: the rows and versions that wait, and per subject the newest version that does not wait any
more; with `keep_ms` for that time.

At-least-once: rows between the snapshot and the crash are joined again, each with the same
versions.

Source: Flink's event-time temporal join (`TemporalRowTimeJoinOperator`) and its broadcast state;
`merge_asof` of pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.newest_versions import IS_VERSION_COLUMN, NewestVersions
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.user.batch_calls import Condition


@dataclass(frozen=True)
class JoinAsOf(InEventOrder):
    """Operator. Results: keys, the columns of the rows, those of the versions."""

    inner: NewestVersions

    @classmethod
    def of(
        cls,
        stage: str,
        key_schema: pa.Schema,
        left_schema: pa.Schema,
        right_schema: pa.Schema,
        *,
        subject: Sequence[str] = (),
        keeps_all: bool = True,
        keep_ms: int | None = None,
        condition: Condition | None = None,
        times: tuple[str | None, str | None] = (None, None),
    ) -> JoinAsOf:
        """
        Args:
            left_schema: the other columns of the rows.
            right_schema: those of the versions; no name is on both sides.
            subject: see `NewestVersions`, as `keeps_all` and `condition`.
            keep_ms: how long a version counts; None: until the next one.
            times: the columns with the event times of rows and versions.
        """
        keys, left, right = (
            pa.schema([field.with_nullable(True) for field in schema])
            for schema in (key_schema, left_schema, right_schema)
        )
        inner = NewestVersions(
            stage, keys, left, right, tuple(subject), keeps_all, keep_ms, condition, times
        )
        return cls(inner)

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        of, address = self.inner, [*ADDRESS, pa.field(ARRIVAL_COLUMN, pa.int64())]
        return tuple(
            pa.schema([*address, *of.key_schema, *columns])
            for columns in (of.left_schema, of.right_schema)
        )

    def step(self, given: StepInput, state: StateReader) -> Step:
        rows, versions = given.arrived
        copies = 0
        if not self.inner.key_schema.names:
            versions, copies = _one_of_late(versions, given.before_ms)
        both = [self._as_inner(rows, is_version=False), self._as_inner(versions, is_version=True)]
        step = super().step(replace(given, arrived=(pa.concat_tables(both),)), state)
        return replace(step, rows_in=step.rows_in - copies)

    def _micros(self, rows: pa.Table) -> np.ndarray:
        return self.inner.micros(rows)

    def _as_inner(self, table: pa.Table, *, is_version: bool) -> pa.Table:
        (schema,) = self.inner.input_schemas
        given = {
            **dict(zip(table.column_names, table.columns, strict=True)),
            IS_VERSION_COLUMN: pa.array(np.full(table.num_rows, is_version)),
        }
        columns = [
            given[field.name] if field.name in given else pa.nulls(table.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)


def _one_of_late(versions: pa.Table, before_ms: int | None) -> tuple[pa.Table, int]:
    """Broadcast versions, with one copy of each late one, and the number of other copies."""
    is_copy = versions.column(HASH_COLUMN).to_numpy() != 0
    is_late = np.full(len(is_copy), False)
    if before_ms is not None:
        is_late = event_times(versions) < before_ms
    kept = versions.filter(pa.array(~(is_copy & is_late)))
    return kept, int((is_copy & ~is_late).sum())
