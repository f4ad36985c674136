"""The inner operator of `JoinAsOf`: joins rows with the newest versions of their key.

A version is a version of a *subject*: the key, or one of several things that share the key (a rule
of a country). Each row is joined with the newest version of each subject of its key.

Rows and versions arrive in order of event time, because `InEventOrder` is around it. Saved: one
version per subject, under the key's hash, so a row finds all subjects of its key. With `ttl_ms` it
expires so long after its event time.

Rows of different hashes never meet, even if their keys are equal. So versions without a key can
have a copy in each partition.

At-least-once: as `JoinAsOf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.lateness import event_times, micros_of
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
    newest_version,
)
from dagster_jet.operators.row_operator import RowOperator
from dagster_jet.operators.rows.event_order import Timeline, expand, portions
from dagster_jet.operators.rows.keys import key_codes, null_keys
from dagster_jet.operators.rows.sorting import distinct, order_by
from dagster_jet.operators.user.batch_calls import Condition, meeting

IS_VERSION_COLUMN = "__is_version"


@dataclass(frozen=True)
class NewestVersions(RowOperator):
    """Operator with one input: rows, with nulls in the versions' columns, and versions."""

    stage: str
    key_schema: pa.Schema
    left_schema: pa.Schema
    right_schema: pa.Schema
    subject: tuple[str, ...]
    """Columns of `right_schema` that tell the subjects of a key apart; none: it has one."""
    keeps_all: bool
    """Rows without a version come out, too, with nulls."""
    ttl_ms: int | None
    """How long a version counts; None: until the next one."""
    condition: Condition | None
    times: tuple[str | None, str | None] = (None, None)
    """Columns with the event times of rows and versions."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a version in the state."""
        return (*self.key_schema.names, *self.subject)

    @property
    def row_schema(self) -> pa.Schema:
        is_version = pa.field(IS_VERSION_COLUMN, pa.bool_())
        return pa.schema([*self.key_schema, *self.left_schema, *self.right_schema, is_version])

    @property
    def state_schema(self) -> pa.Schema:
        version = pa.field(VERSION_COLUMN, pa.int64())
        return pa.schema([*ADDRESS, version, *self.key_schema, *self.right_schema])

    @property
    def result_schema(self) -> pa.Schema:
        return pa.schema([*self.key_schema, *self.left_schema, *self.right_schema])

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        return newest_version(tables, (HASH_COLUMN, *self.keys))

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        is_version = arrived.column(IS_VERSION_COLUMN)
        rows, new = arrived.filter(pc.invert(is_version)), arrived.filter(is_version)
        hashes = distinct(arrived.column(HASH_COLUMN).to_numpy())
        saved = state.find(hashes) if len(hashes) else self.state_schema.empty_table()
        written = pa.array(np.full(new.num_rows, given.version))
        new = new.append_column(VERSION_COLUMN, written).select(self.state_schema.names)
        # Rows of one ms come in one step: without microseconds in it, saved ones do not count.
        in_micros = bool(self.micros(arrived).any())
        known = _Versions(self, pa.concat_tables([saved, new]), in_micros)
        results = [self.result_schema.empty_table(), *self._joined(rows, known)]
        delta = known.newest(saved.num_rows, self.expired_until(given.after_ms))
        return Step(pa.concat_tables(results), delta, arrived.num_rows)

    def micros(self, arrived: pa.Table) -> np.ndarray:
        """`micros_of` rows and versions."""
        of_row, of_version = (micros_of(arrived, time) for time in self.times)
        return np.where(arrived.column(IS_VERSION_COLUMN).to_numpy(), of_version, of_row)

    def _joined(self, rows: pa.Table, known: _Versions) -> Iterator[pa.Table]:
        """Results, in the order of the rows."""
        by_key, starts, stops = known.subjects_of(rows)
        for part in portions(starts, stops):
            some = rows.slice(part.start, part.stop - part.start)
            which, places = expand(starts[part], stops[part])
            moments = known.moments(some, self.times[0])
            is_there, found_at = known.at(by_key[places], moments[which])
            pairs = which[is_there]
            found = self._result(some, known, pairs, found_at)
            if self.condition is not None:
                meets = meeting(self.condition, self.stage, found)
                found, pairs = found.filter(pa.array(meets)), pairs[meets]
            if self.keeps_all:
                alone = np.setdiff1d(np.arange(some.num_rows), pairs)
                nulls = self._result(some, known, alone, np.full(len(alone), -1))
                both = pa.concat_tables([found, nulls])
                found = both.take(pa.array(order_by(np.append(pairs, alone))))
            yield found

    def _result(
        self, rows: pa.Table, known: _Versions, which: np.ndarray, places: np.ndarray
    ) -> pa.Table:
        """Rows with versions; -1: nulls."""
        own = [*self.key_schema.names, *self.left_schema.names]
        left = rows.select(own).take(pa.array(which))
        right = known.rows.select(self.right_schema.names).take(pa.array(places, mask=places < 0))
        return pa.Table.from_arrays([*left.columns, *right.columns], schema=self.result_schema)


class _Versions:
    """Saved and new versions, by subject and event time."""

    def __init__(self, operator: NewestVersions, rows: pa.Table, in_micros: bool) -> None:
        """
        Args:
            rows: versions in the schema of the state, those of one time in order of arrival.
            in_micros: times are compared in microseconds; otherwise in ms, which costs less.
        """
        self.rows = rows
        self._operator, self._in_micros = operator, in_micros
        self._moments = self.moments(rows, operator.times[1])
        (codes,) = key_codes((HASH_COLUMN, *operator.keys), rows)
        _, firsts, self._subjects = np.unique(codes, return_index=True, return_inverse=True)
        self._firsts = rows.take(pa.array(firsts))
        self._timeline = Timeline(self._subjects, self._moments)

    def moments(self, rows: pa.Table, time: str | None) -> np.ndarray:
        """Event times as they are compared."""
        moments = event_times(rows)
        return moments * 1_000 + micros_of(rows, time) if self._in_micros else moments

    def subjects_of(self, rows: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Subjects by key, and per row the range of those of its key; empty for a null key."""
        keys = (HASH_COLUMN, *self._operator.key_schema.names)
        codes, of_subjects = key_codes(keys, rows, self._firsts)
        by_key = order_by(of_subjects)
        starts, stops = (
            np.searchsorted(of_subjects[by_key], codes, side) for side in ("left", "right")
        )
        return by_key, starts, np.where(null_keys(keys, rows), starts, stops)

    def at(self, subjects: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether each subject has a version that counts at the moment; and the row numbers of the
        newest one, for those that have."""
        ttl_ms = self._operator.ttl_ms
        unit = 1_000 if self._in_micros else 1
        oldest = self._moments.min(initial=0) if ttl_ms is None else moments - ttl_ms * unit
        first, last = np.broadcast_arrays(oldest, moments)
        starts, stops = self._timeline.between(subjects, first, last)
        is_there = stops > starts
        return is_there, self._timeline.order[stops[is_there] - 1]

    def newest(self, saved: int, expired_until_ms: int | None) -> pa.Table:
        """The newest version of each subject, if it is new and has not expired.

        Args:
            saved: number of saved versions, which come first.
        """
        order = self._timeline.order
        newest = order[np.flatnonzero(np.diff(self._subjects[order], append=-1))]
        is_new = newest >= saved
        if expired_until_ms is not None:
            is_new &= event_times(self.rows)[newest] > expired_until_ms
        return self.rows.take(pa.array(np.sort(newest[is_new])))
