"""Session windows: per key, events that follow each other in less than a gap.

The first stage sends *buckets*: per key and `floor(time / gap)`, or per key and millisecond, the
first and last event time and partials. All events of a bucket are less than a gap apart, so a
bucket is part of one session, and the step only merges intervals. State is versioned: a step reads
the sessions of the touched keys and writes them again, so its cost depends on the touched keys.
Where the state of a session grows with its rows, it writes only the new content (`session_pieces`).

At-least-once: after a restart the events between the snapshot and the crash are counted again in
sessions that were open at the snapshot. A session emitted since then is emitted again, and is
longer if more of its events have arrived by then.
Source: Hazelcast Jet `SessionWindowP`; vectors.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dagster_jet.operators.aggregates.aggregation import ROW_COUNT, Aggregation, row_count
from dagster_jet.operators.aggregates.grouping import rows_where
from dagster_jet.operators.lateness import event_times
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
    newest_version,
    with_version,
)
from dagster_jet.operators.partials_operator import VersionedPartials
from dagster_jet.operators.rows.casting import cast_column
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct, is_among, order_by
from dagster_jet.operators.session_pieces import (
    FIRST_TIME_COLUMN,
    PIECES_MAX,
    SINCE_COLUMN,
    SessionState,
    as_pieces,
    first_times,
)
from dagster_jet.operators.window_results import (
    check_times,
    window_result_schema,
    window_results,
)

_SESSION = "__session"
FOLDED_BY = 4
"""A session is folded if its new rows times this factor are at least its saved rows."""


@dataclass(frozen=True)
class SessionWindows(VersionedPartials):
    """Operator for sessions. A session is [first event, last event + gap).

    It closes when its end is *before* the watermark, and an event is late when its time is: an
    event at the watermark itself can still come. Sessions that only touch (one ends where the next
    begins) stay separate. The first stage leaves late events out of the buckets; a bucket that is
    late as a whole is dropped here and counted.

    A newer version of a key never expires before an older one, as versions require: merging never
    makes a key's last event earlier. A session that is not written again closes under the watermark
    of the same step, and so expires with all rows it was merged from.

    Changing the gap in the code: sessions in state keep their first and last events. Ends are
    computed with the new gap, and sessions merge under the new gap when their key receives an
    event. Results emitted under the old gap are not corrected.
    """

    input_schema: pa.Schema
    """`__partition`, `__hash`, keys, `__first`, `__time` (last event), partials, `__rows`."""
    keys: tuple[str, ...]
    gap_ms: int
    aggregation: Aggregation
    early_results: bool = False

    @cached_property
    def state_schema(self) -> pa.Schema:
        state = super().state_schema
        if not self.aggregation.grows:
            return state
        fields = [f.with_nullable(True) if f.name in self._content else f for f in state]
        return pa.schema([*fields, pa.field(SINCE_COLUMN, pa.int64())])

    @cached_property
    def _content(self) -> tuple[str, ...]:
        return (*(name for name, _ in self.aggregation.partials), ROW_COUNT)

    @cached_property
    def result_schema(self) -> pa.Schema:
        return window_result_schema(
            self.aggregation, self.keys, self.state_schema, early=self.early_results
        )

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Keeps the newest sessions of every key."""
        if not self.aggregation.grows:
            return super().merge(tables)
        kept = SessionState.of(pa.concat_tables(tables))
        return pa.concat_tables([newest_version([kept.headers], self.keys), kept.pieces])

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        """Drops void content, and content of closed sessions."""
        if not self.aggregation.grows:
            return merged
        kept = SessionState.of(merged)
        wanted = kept.sessions_of_pieces(self.keys) >= 0
        return pa.concat_tables([kept.headers, rows_where(kept.pieces, wanted)])

    def whole(self, state: pa.Table) -> pa.Table:
        """Merged state rows with each session in one row, header and content."""
        if not self.aggregation.grows:
            return state
        kept = SessionState.of(state)
        return self._together(kept, np.arange(kept.headers.num_rows))

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        timely, late = timely_partials(self.aggregation, arrived, given.before_ms)
        closed_until = self.expired_until(given.after_ms)
        touched = distinct(hashes(timely))
        looked_up = touched
        if closed_until is not None:
            # Even if the watermark did not move: with a shorter gap than before, sessions have
            # closed.
            due = state.due(closed_until)
            if self.aggregation.grows:
                due = SessionState.of(due).headers
            looked_up = distinct(np.append(touched, hashes(due)))
        found = state.find(looked_up) if len(looked_up) else self.state_schema.empty_table()
        take_in = self._take_in_pieces if self.aggregation.grows else self._take_in
        delta, closed, open_ = take_in(given, timely, found, touched, closed_until)
        results = [self._results(table) for table in closed if table.num_rows]
        if given.early and self.early_results:
            others = self.whole(state.scan())
            others = rows_where(others, ~is_among(hashes(others), touched))
            if closed_until is not None:
                others = rows_where(others, event_times(others) > closed_until)
            results += [self._results(table, early=True) for table in (open_, others)]
        return Step(
            results=pa.concat_tables(results) if results else self.result_schema.empty_table(),
            delta=delta,
            rows_in=row_count(arrived),
            late=late,
        )

    def _take_in(
        self,
        given: StepInput,
        timely: pa.Table,
        found: pa.Table,
        touched: np.ndarray,
        closed_until: int | None,
    ) -> tuple[pa.Table, list[pa.Table], pa.Table]:
        """Returns the delta, closed sessions, and open sessions of touched keys."""
        concerned = is_among(hashes(found), touched)
        pieces = rows_where(found, concerned).drop_columns([VERSION_COLUMN])
        pieces = pa.concat_tables([timely, pieces.select(timely.column_names)])
        sessions = sessions_of(self.aggregation, self.keys, pieces, self.gap_ms)
        sessions = with_version(sessions, given.version, self.state_schema)
        if closed_until is None:
            return sessions, [], sessions
        untouched = rows_where(found, ~concerned)
        open_ = rows_where(sessions, event_times(sessions) > closed_until)
        closed = [rows_where(t, event_times(t) <= closed_until) for t in (sessions, untouched)]
        return open_, closed, open_

    def _take_in_pieces(
        self,
        given: StepInput,
        timely: pa.Table,
        found: pa.Table,
        touched: np.ndarray,
        closed_until: int | None,
    ) -> tuple[pa.Table, list[pa.Table], pa.Table]:
        """Like `_take_in`, but usually writes only the new content of a session that stays open."""
        kept = SessionState.of(found)
        concerned = is_among(hashes(kept.headers), touched)
        over = np.flatnonzero(~concerned)
        if closed_until is not None:
            over = over[event_times(kept.headers)[over] <= closed_until]
        else:
            over = over[:0]
        headers = rows_where(kept.headers, concerned)
        kept_now = SessionState(headers, kept.pieces)
        header_of_piece = kept_now.sessions_of_pieces(self.keys)

        whose = [PARTITION_COLUMN, HASH_COLUMN, *self.keys, FIRST_TIME_COLUMN, TIME_COLUMN]
        intervals = pa.concat_tables([timely.select(whose), headers.select(whose)])
        number = session_numbers(self.keys, intervals, self.gap_ms)
        count = int(number.max()) + 1 if len(number) else 0
        of_arrived, of_header = number[: timely.num_rows], number[timely.num_rows :]
        is_ours = header_of_piece >= 0
        of_piece = of_header[header_of_piece[is_ours]]
        pieces = rows_where(kept.pieces, is_ours)

        first = _per_group(np.minimum, first_times(intervals), number, count)
        last = _per_group(np.maximum, event_times(intervals), number, count)
        newest = _per_group(np.maximum, event_times(timely), of_arrived, count)
        oldest = _per_group(np.minimum, event_times(pieces), of_piece, count)
        had, has_come = (np.bincount(of, minlength=count) for of in (of_header, of_arrived))
        rows_come, rows_had = (
            np.bincount(of, table.column(ROW_COUNT).to_numpy(), minlength=count)
            for of, table in ((of_arrived, timely), (of_piece, pieces))
        )
        is_over = np.zeros(count, bool) if closed_until is None else last <= closed_until
        folds = (
            (had != 1)
            | (oldest < last)
            | ((has_come > 0) & (newest + self.gap_ms < last))
            | (np.bincount(of_piece, minlength=count) >= PIECES_MAX)
            | (FOLDED_BY * rows_come >= rows_had)
            | is_over
            | given.early
        )
        since = np.full(count, given.version)
        since[of_header] = headers.column(SINCE_COLUMN).to_numpy()
        since[folds] = given.version

        folded = folds[of_piece]
        content = pa.concat_tables(
            [timely, rows_where(pieces, folded).select(timely.column_names)],
            promote_options="default",
        )
        numbers = np.concatenate([of_arrived, of_piece[folded]])
        merged = self.aggregation.merge(
            content.append_column(_SESSION, pa.array(numbers)), [_SESSION], [(TIME_COLUMN, "max")]
        )
        session = merged.column(_SESSION).to_numpy()
        until = np.where(folds[session], last[session], event_times(merged))
        begun_now = _per_group(np.minimum, first_times(timely), of_arrived, count)
        begun = np.where(folds, first, begun_now)[session]
        anyone = np.empty(count, np.int64)
        anyone[number] = np.arange(len(number))

        def rows(sessions: np.ndarray, content: pa.Table | None, **own: np.ndarray) -> pa.Table:
            of = intervals.take(pa.array(anyone[sessions]))
            own[VERSION_COLUMN] = np.full(len(sessions), given.version)
            columns = []
            for field in self.state_schema:
                if field.name in own:
                    column = pa.chunked_array([pa.array(own[field.name], pa.int64())])
                elif field.name not in self._content:
                    column = of.column(field.name)
                elif content is None:
                    column = pa.chunked_array([pa.nulls(len(sessions), field.type)])
                else:
                    column = cast_column(content.column(field.name), field.type)
                columns.append(column)
            return pa.Table.from_arrays(columns, schema=self.state_schema)

        wholes = rows(
            session, merged,
            **{FIRST_TIME_COLUMN: begun, TIME_COLUMN: until, SINCE_COLUMN: since[session]},
        )  # fmt: skip
        live = np.flatnonzero(~is_over)
        open_ = rows_where(wholes, ~is_over[session])
        delta = [
            rows(
                live, None,
                **{FIRST_TIME_COLUMN: first[live], TIME_COLUMN: last[live],
                   SINCE_COLUMN: since[live]},
            ),
            as_pieces(open_, event_times(open_) + self.gap_ms),
        ]  # fmt: skip
        closed = [rows_where(wholes, is_over[session]), self._together(kept, over)]
        return pa.concat_tables(delta), closed, open_

    def _together(self, kept: SessionState, headers: np.ndarray) -> pa.Table:
        """Each of these sessions in one row."""
        if len(headers) == 0:
            return self.state_schema.empty_table()
        place = np.full(kept.headers.num_rows, -1)
        place[headers] = np.arange(len(headers))
        of_piece = kept.sessions_of_pieces(self.keys)
        wanted = of_piece >= 0
        wanted[wanted] = place[of_piece[wanted]] >= 0
        pieces = rows_where(kept.pieces, wanted)
        numbers = pa.array(place[of_piece[wanted]])
        merged = self.aggregation.merge(pieces.append_column(_SESSION, numbers), [_SESSION])
        whose = kept.headers.take(pa.array(headers[merged.column(_SESSION).to_numpy()]))
        arrays = [
            cast_column(
                (merged if field.name in self._content else whose).column(field.name), field.type
            )
            for field in self.state_schema
        ]
        return pa.Table.from_arrays(arrays, schema=self.state_schema)

    def groups(self, arrived: pa.Table) -> int:
        """Buckets as wide as the gap, also where they arrive by the millisecond."""
        # Hashes of keys are far apart: the sums are as distinct as the pairs.
        return len(distinct(hashes(arrived) + first_times(arrived) // self.gap_ms))

    def expired_until(self, watermark_ms: int | None) -> int | None:
        """A session is closed when last event + gap < watermark (strict)."""
        return None if watermark_ms is None else watermark_ms - self.gap_ms - 1

    def _results(self, sessions: pa.Table, *, early: bool = False) -> pa.Table:
        return window_results(
            self.aggregation,
            self.keys,
            self.result_schema,
            sessions,
            first_times(sessions),
            event_times(sessions) + self.gap_ms,
            early=early,
        )


def sessions_of(
    aggregation: Aggregation, keys: Sequence[str], pieces: pa.Table, gap_ms: int
) -> pa.Table:
    """Merges intervals of the same key that overlap, with the gap behind them, into one session."""
    if pieces.num_rows < 2:
        return pieces
    return merge_sessions(aggregation, keys, pieces, session_numbers(keys, pieces, gap_ms))


def session_numbers(keys: Sequence[str], pieces: pa.Table, gap_ms: int) -> np.ndarray:
    """Session number of each interval, by key and time; overlapping intervals share one."""
    (key,) = key_codes(keys, pieces)
    first = first_times(pieces)
    order = order_by(key, first)
    key, first, last = key[order], first[order], event_times(pieces)[order]
    begins = np.ones(len(order), bool)
    reach = running_maximum(last, key) + gap_ms
    begins[1:] = (key[1:] != key[:-1]) | (first[1:] >= reach[:-1])
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(begins) - 1
    return number


def merge_sessions(
    aggregation: Aggregation, keys: Sequence[str], pieces: pa.Table, number: np.ndarray
) -> pa.Table:
    """Merges the pieces of each session number: first and last times, partials."""
    if number.max() + 1 == len(number):
        return pieces
    anyone = np.empty(len(number), np.int64)
    anyone[number] = np.arange(len(number))
    merged = aggregation.merge(
        pieces.append_column(_SESSION, pa.array(number)),
        [_SESSION],
        [(FIRST_TIME_COLUMN, "min"), (TIME_COLUMN, "max")],
    )
    of_session = anyone[merged.column(_SESSION).to_numpy()]
    names = [PARTITION_COLUMN, HASH_COLUMN, *keys]
    whose = pieces.select(names).take(pa.array(of_session))
    columns = {name: whose.column(name) for name in names}
    arrays = [
        columns[name] if name in columns else merged.column(name) for name in pieces.column_names
    ]
    return pa.Table.from_arrays(arrays, schema=pieces.schema)


def _per_group(of_two: np.ufunc, values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Minimum or maximum of each group's values; a neutral value for an empty group."""
    limits = np.iinfo(np.int64)
    # Half of the limit, so that adding a gap cannot overflow.
    found = np.full(count, (limits.max if of_two is np.minimum else limits.min) // 2)
    of_two.at(found, group, values)
    return found


def running_maximum(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Running maximum of `values` within each group. `group` is ascending.

    Uses ranks instead of values: a group's number times the row count, plus a rank, fits 64 bits,
    so one accumulation over all rows restarts at each group.
    """
    by_value = order_by(values)
    rank = np.empty(len(values), np.int64)
    rank[by_value] = np.arange(len(values))
    floor = group * len(values)
    highest = np.maximum.accumulate(floor + rank) - floor
    greatest: np.ndarray = values[by_value][highest]
    return greatest


def timely_partials(
    aggregation: Aggregation, arrived: pa.Table, before_ms: int | None
) -> tuple[pa.Table, int]:
    """Returns the partials whose newest row is not late, and the number of rows of the others.

    Raises:
        BadRowError: a partial has no event time, or one that no result can have.
    """
    times, timely, late = event_times(arrived), arrived, 0
    if before_ms is not None and arrived.num_rows:
        timely = rows_where(arrived, times >= before_ms)
        late = row_count(arrived) - row_count(timely)
    check_times(event_times(timely))
    return aggregation.admit(timely), late


def hashes(table: pa.Table) -> np.ndarray:
    hashes: np.ndarray = table.column(HASH_COLUMN).to_numpy()
    return hashes


__all__ = [
    "FIRST_TIME_COLUMN",
    "SessionWindows",
    "hashes",
    "merge_sessions",
    "running_maximum",
    "sessions_of",
    "timely_partials",
]
