"""Interval join: rows of two streams with equal keys, the right one between two bounds of the left.

A pair has lower <= right time - left time <= upper, and meets the user's condition if there is one.
Results are pairs of rows, as a multiset: equal rows are different rows. A side that is kept whole
(`left`, `right`, `outer`) also emits each row without a partner once, alone, when no partner can
come any more: left time + upper < watermark, right time - lower < watermark (both strict). `semi`
emits each left row with a partner once, when the first one is there, and `anti` each left row
without one, when none can come. As in SQL, a null key matches nothing; such a row appears alone if
its side is kept, else it is dropped. A step reads only the saved rows near its own in time, not all
rows of their keys.

Saved: the rows of both sides that a later row could match. Their `TIME_COLUMN` is the event time,
less the amount by which their side is kept shorter than the other, so one watermark expires both. A
join that keeps rows whole also saves which rows have matched. A row that matches on arrival is
written with its flag set; one that matches later gets a *mark*, a narrow row with its identity, and
`merge` combines the two. An inner join has no identities, no marks, and looks nothing up when rows
expire. Rows before the watermark are late: dropped and counted.

At-least-once: pairs emitted between the snapshot and the crash are emitted again if both rows are
replayed or saved. A row emitted alone may be emitted again, but within one execution never both
alone and in a pair. Exactly-once: each once.

Source: the interval join of Flink (`IntervalJoinOperator`), outer as in its SQL; Jet has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from dagster_jet.errors import PipelineError
from dagster_jet.operators.address import ADDRESS, check_columns
from dagster_jet.operators.lateness import drop_late, event_times
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    TIME_COLUMN,
    Intervals,
    Operator,
    StateReader,
    Step,
    StepInput,
)
from dagster_jet.operators.rows.event_order import Timeline, expand, portions
from dagster_jet.operators.rows.keys import key_codes, null_keys
from dagster_jet.operators.user.batch_calls import Condition, meeting

ROLE_COLUMN = "__role"
"""int8, kind of a state row: LEFT, RIGHT or MARK."""
LEFT, RIGHT, MARK = 0, 1, 2
ROW_STEP_COLUMN = "__row_step"
"""int64, with ROW_INDEX_COLUMN: the step that received a row, and its index in that step's input.
Unique together with the hash, because a key belongs to one shard in one step."""
ROW_INDEX_COLUMN = "__row_index"
MATCHED_COLUMN = "__matched"
"""bool: the row is not emitted alone when it expires; always true on a side that is not kept."""

JoinType = Literal["inner", "left", "right", "outer", "semi", "anti"]

_IDENTITY = (
    pa.field(ROW_STEP_COLUMN, pa.int64()),
    pa.field(ROW_INDEX_COLUMN, pa.int64()),
    pa.field(MATCHED_COLUMN, pa.bool_()),
)


@dataclass(frozen=True)
class IntervalJoin(Operator):
    """Operator. Input 0 is left, 1 is right; results: keys, left columns, right columns."""

    key_schema: pa.Schema
    """The keys, with the same name and type on both sides."""
    left_schema: pa.Schema
    """The left stream's other columns, named as in the result."""
    right_schema: pa.Schema
    between_ms: tuple[int, int]
    """Bounds of the right row's time minus the left row's, both included."""
    how: JoinType = "inner"
    condition: Condition | None = None
    stage: str = ""
    """For errors of the condition."""

    def __post_init__(self) -> None:
        if self.how not in get_args(JoinType):
            raise PipelineError(f"how={self.how!r}; expected one of {get_args(JoinType)}.")
        names = self.pair_schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PipelineError(
                f"both sides of the join have a column {', '.join(twice)}.",
                cure="Rename it on one side before the join.",
            )
        check_columns(self, self.key_schema.names)

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        return tuple(
            pa.schema([*ADDRESS, *self.key_schema, *payload])
            for payload in (self.left_schema, self.right_schema)
        )

    @property
    def state_schema(self) -> pa.Schema:
        identity = () if self.how == "inner" else _IDENTITY
        role = pa.field(ROLE_COLUMN, pa.int8())
        return pa.schema([*ADDRESS, role, *identity, *self.pair_schema])

    @property
    def pair_schema(self) -> pa.Schema:
        """Keys, left columns, right columns."""
        fields = [*self.key_schema, *self.left_schema, *self.right_schema]
        return pa.schema([field.with_nullable(True) for field in fields])

    @property
    def result_schema(self) -> pa.Schema:
        if not self._is_of_left:
            return self.pair_schema
        fields = [*self.key_schema, *self.left_schema]
        return pa.schema([field.with_nullable(True) for field in fields])

    @property
    def _is_of_left(self) -> bool:
        """Whether results are rows of the left side only."""
        return self.how in ("semi", "anti")

    @cached_property
    def _kept_ms(self) -> tuple[int, int]:
        """How long after its event time a row of each side can get a partner."""
        lower, upper = self.between_ms
        return upper, -lower

    @property
    def time_column(self) -> str:
        return TIME_COLUMN

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Turns marks into the `matched` flag of their rows; a mark without its row stays."""
        return with_marks(pa.concat_tables(tables))

    def expired_until(self, watermark_ms: int | None) -> int | None:
        return None if watermark_ms is None else watermark_ms - max(self._kept_ms) - 1

    def step(self, given: StepInput, state: StateReader) -> Step:
        expired = self.expired_until(given.after_ms)
        left_arrived, left_late = drop_late(given.arrived[LEFT], given.before_ms)
        right_arrived, right_late = drop_late(given.arrived[RIGHT], given.before_ms)
        left_new = self._state_rows(left_arrived, LEFT, given.version, 0)
        right_new = self._state_rows(right_arrived, RIGHT, given.version, left_arrived.num_rows)

        reach = _Reach.of((left_new, right_new), max(map(abs, self.between_ms)))
        found = self.state_schema.empty_table()
        if len(reach.hashes):
            found = state.find(reach.hashes, reach.times)
        left, right = self._sides(found, left_new, right_new)
        results, *flags = self._met(left, right)
        emits_alone = self.how not in ("inner", "semi")
        delta = []
        for side, matched in zip((left, right), flags, strict=True):
            if self.how == "semi" and side is left:
                results.append(side.rows.filter(pa.array(matched & ~side.matched)))
            if expired is not None and emits_alone:
                results.append(side.rows.filter(pa.array(~matched & (side.times <= expired))))
            live = np.full(len(matched), True) if expired is None else side.times > expired
            delta += self._changes(side, matched, live)
        if expired is not None and emits_alone:
            results.append(self._expired(state, expired, reach))
        names = self.result_schema.names
        return Step(
            results=pa.concat_tables(
                [self.result_schema.empty_table(), *(table.select(names) for table in results)]
            ),
            delta=pa.concat_tables(delta),
            rows_in=sum(table.num_rows for table in given.arrived),
            late=left_late + right_late,
        )

    def _keeps(self, role: int) -> bool:
        """Whether it matters if a row of the side has a partner."""
        if role == LEFT and self._is_of_left:
            return True
        return self.how == "outer" or self.how == ("left", "right")[role]

    def _state_rows(self, arrived: pa.Table, role: int, step: int, first_index: int) -> pa.Table:
        """Converts input rows to state rows; the other side's columns are null."""
        count = arrived.num_rows
        shorter = max(self._kept_ms) - self._kept_ms[role]
        own = {
            TIME_COLUMN: event_times(arrived) - shorter,
            ROLE_COLUMN: np.full(count, role, np.int8),
            ROW_STEP_COLUMN: np.full(count, step),
            ROW_INDEX_COLUMN: np.arange(first_index, first_index + count),
            MATCHED_COLUMN: np.full(count, not self._keeps(role)),
        }
        rows = _filled(self.state_schema, arrived, own)
        if self._keeps(role):
            return rows
        nulls = null_keys(self.key_schema.names, rows)
        return rows.filter(pa.array(~nulls)) if nulls.any() else rows

    def _sides(
        self, found: pa.Table, left_new: pa.Table, right_new: pa.Table
    ) -> tuple[_Side, _Side]:
        roles = found.column(ROLE_COLUMN).to_numpy()
        tables, old = [], []
        for role, new in ((LEFT, left_new), (RIGHT, right_new)):
            saved = found.filter(pa.array(roles == role))
            tables.append(pa.concat_tables([saved, new]))
            old.append(saved.num_rows)
        names = self.key_schema.names
        codes = key_codes(names, *tables)
        for role, table in enumerate(tables):
            codes[role][null_keys(names, table)] = -1 - role  # matches nothing on the other side
        left, right = (
            _Side(
                table,
                old[role],
                codes[role],
                event_times(table),
                _flags(table) if self.how != "inner" else np.full(table.num_rows, True),
            )
            for role, table in enumerate(tables)
        )
        return left, right

    def _met(self, left: _Side, right: _Side) -> tuple[list[pa.Table], np.ndarray, np.ndarray]:
        """Joined pairs, and by side which rows have matched, before this step or in it."""
        pairs = _Pairs.of(left, right, self.between_ms)
        results: list[pa.Table] = []
        of_left, of_right = left.matched.copy(), right.matched.copy()
        if self._is_of_left and self.condition is None:
            of_left[pairs.left[pairs.stops > pairs.starts]] = True
            return results, of_left, of_right
        for left_rows, right_rows in pairs.some_at_once():
            joined = self._joined(left, right, left_rows, right_rows)
            meets: np.ndarray | slice = slice(None)
            if self.condition is not None:
                meets = meeting(self.condition, self.stage, joined)
                joined = joined.filter(pa.array(meets))
            of_left[left_rows[meets]] = of_right[right_rows[meets]] = True
            if not self._is_of_left:
                results.append(joined)
        return results, of_left, of_right

    def _joined(
        self, left: _Side, right: _Side, left_rows: np.ndarray, right_rows: np.ndarray
    ) -> pa.Table:
        of_left = left.rows.select([*self.key_schema.names, *self.left_schema.names])
        of_right = right.rows.select(self.right_schema.names)
        columns = of_left.take(pa.array(left_rows)).columns
        columns += of_right.take(pa.array(right_rows)).columns
        return pa.Table.from_arrays(columns, schema=self.pair_schema)

    def _changes(self, side: _Side, matched: np.ndarray, live: np.ndarray) -> list[pa.Table]:
        """State rows to append: the side's new rows, and marks for old rows that now matched."""
        new = side.rows.slice(side.old).filter(pa.array(live[side.old :]))
        if self.how == "inner":
            return [new]
        place = new.schema.get_field_index(MATCHED_COLUMN)
        flags = pa.array(matched[side.old :][live[side.old :]])
        new = new.set_column(place, new.schema.field(place), flags)
        changed = np.flatnonzero((matched & ~side.matched & live)[: side.old])
        identified = side.rows.select(
            [*(f.name for f in ADDRESS), ROW_STEP_COLUMN, ROW_INDEX_COLUMN]
        ).take(pa.array(changed))
        own = {
            ROLE_COLUMN: np.full(len(changed), MARK, np.int8),
            MATCHED_COLUMN: np.full(len(changed), True),
        }
        return [new, _filled(self.state_schema, identified, own)]

    def _expired(self, state: StateReader, expired: int, reach: _Reach) -> pa.Table:
        """Rows that expire without a match, among those that this step did not look up."""
        due = state.due(expired)
        due = due.filter(pa.array(~reach.has(_hashes(due), event_times(due))))
        if due.num_rows == 0:
            return due
        due = self.merge([due])
        return due.filter(pa.array(~_flags(due)))


@dataclass(frozen=True)
class _Reach:
    """Saved rows that the rows of a step can match: by key hash and interval of event times."""

    hashes: np.ndarray
    """Ascending."""
    times: Intervals

    @classmethod
    def of(cls, arrived: Sequence[pa.Table], distance_ms: int) -> _Reach:
        hashes = np.concatenate([_hashes(table) for table in arrived])
        times = np.concatenate([event_times(table) for table in arrived])
        order = np.argsort(hashes)
        hashes, times = hashes[order], times[order]
        begins = np.flatnonzero(np.diff(hashes, prepend=hashes[:1] - 1) != 0)
        if len(begins) == 0:
            return cls(hashes, Intervals(times, times))
        first, last = (of.reduceat(times, begins) for of in (np.minimum, np.maximum))
        return cls(hashes[begins], Intervals(first - distance_ms, last + distance_ms))

    def has(self, hashes: np.ndarray, times: np.ndarray) -> np.ndarray:
        if len(self.hashes) == 0:
            return np.zeros(len(hashes), bool)
        places = np.searchsorted(self.hashes, hashes)
        places = np.minimum(places, len(self.hashes) - 1)
        near = self.times.of(places)
        found: np.ndarray = self.hashes[places] == hashes
        return found & (times >= near.first) & (times <= near.last)


@dataclass(frozen=True)
class _Side:
    """State rows of one side for the keys of a step: saved rows first, then new ones."""

    rows: pa.Table
    old: int
    """Number of saved rows."""
    codes: np.ndarray
    times: np.ndarray
    matched: np.ndarray


@dataclass(frozen=True)
class _Pairs:
    """All pairs with a new row; pairs of old rows were emitted before."""

    left: np.ndarray
    """Row numbers of the left side; old rows only with their new partners."""
    starts: np.ndarray
    stops: np.ndarray
    """The partners of each are `right[start:stop]`."""
    right: np.ndarray

    @classmethod
    def of(cls, left: _Side, right: _Side, between_ms: tuple[int, int]) -> _Pairs:
        new_left, old_left = slice(left.old, None), slice(0, left.old)
        everything, new_right = slice(0, None), slice(right.old, None)
        new = cls._near(left, new_left, right, everything, between_ms)
        old = cls._near(left, old_left, right, new_right, between_ms)
        return cls(
            np.concatenate([new.left, old.left]),
            np.concatenate([new.starts, old.starts + len(new.right)]),
            np.concatenate([new.stops, old.stops + len(new.right)]),
            np.concatenate([new.right, old.right]),
        )

    @classmethod
    def _near(
        cls, left: _Side, of_left: slice, right: _Side, of_right: slice, between_ms: tuple[int, int]
    ) -> _Pairs:
        """Pairs by the saved times: the left one is `upper` before its expiry, the right one
        `-lower`, so their difference is between -upper and -lower."""
        lower, upper = between_ms
        line = Timeline(right.codes[of_right], right.times[of_right])
        codes, times = left.codes[of_left], left.times[of_left]
        starts, stops = line.between(codes, times - upper, times - lower)
        numbers = np.arange(of_left.start, of_left.start + len(codes))
        return cls(numbers, starts, stops, line.order + of_right.start)

    def some_at_once(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Row numbers of both sides: one key with many rows has more pairs than memory."""
        for part in portions(self.starts, self.stops):
            which, places = expand(self.starts[part], self.stops[part])
            yield self.left[part][which], self.right[places]


def _filled(schema: pa.Schema, table: pa.Table, own: dict[str, np.ndarray]) -> pa.Table:
    """Brings `table` into `schema`, with columns from `own`; missing columns are null."""
    columns = []
    for field in schema:
        if field.name in own:
            columns.append(pa.chunked_array([pa.array(own[field.name])], field.type))
        elif field.name in table.column_names:
            columns.append(table.column(field.name))
        else:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
    return pa.Table.from_arrays(columns, schema=schema)


def with_marks(table: pa.Table) -> pa.Table:
    """Sets the matched flags of state rows from their marks; a mark without its row stays."""
    marks = table.column(ROLE_COLUMN).to_numpy() == MARK
    if not marks.any():
        return table
    (rows,) = key_codes((HASH_COLUMN, ROW_STEP_COLUMN, ROW_INDEX_COLUMN), table)
    marked = np.zeros(table.num_rows, bool)
    marked[rows[marks]] = True
    present = np.zeros(table.num_rows, bool)
    present[rows[~marks]] = True
    matched = _flags(table) | marked[rows]
    place = table.schema.get_field_index(MATCHED_COLUMN)
    table = table.set_column(place, table.schema.field(place), pa.array(matched))
    return table.filter(pa.array(~marks | ~present[rows]))


def _flags(table: pa.Table) -> np.ndarray:
    flags: np.ndarray = table.column(MATCHED_COLUMN).to_numpy()
    return flags


def _hashes(table: pa.Table) -> np.ndarray:
    hashes: np.ndarray = table.column(HASH_COLUMN).to_numpy()
    return hashes
