"""Session windows with a maximum duration.

The first stage sends partials per key and event time, because only the rows before a row say which
session it is in. In the state a row of partials is

- *waiting*: of one event time that the watermark has not passed. `__time` is that time;
- or an open session, with all of its rows before the watermark. `__time` is its end so far.

A step merges the rows that the watermark has passed, in order of event time, and no row can come
between them any more. So the sessions do not depend on how rows are divided into steps. State is
versioned: a step writes all rows of the keys that it touches, and of those with rows to be merged.

At-least-once: as in `session.py`.
Source: Azure Stream Analytics, `SessionWindow` with `maxDurationSize`, which looks at durations now
and then; here a session ends exactly at the maximum.
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
    TIME_COLUMN,
    StateReader,
    Step,
    StepInput,
    first_at_least,
    with_version,
)
from dagster_jet.operators.partials_operator import VersionedPartials
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.operators.rows.sorting import distinct, is_among, order_by
from dagster_jet.operators.session import (
    hashes,
    merge_sessions,
    running_maximum,
    timely_partials,
)
from dagster_jet.operators.session_pieces import first_times
from dagster_jet.operators.window_results import window_result_schema, window_results

_ALL = np.iinfo(np.int64).max


@dataclass(frozen=True)
class BoundedSessions(VersionedPartials):
    """Operator for sessions of limited duration.

    A session is [first event, end): its end is the last event + gap, at most the first event + the
    maximum. An event at the end or later begins another session. A session closes when its end is
    *before* the watermark; late events are those of `SessionWindows`.

    An end in the state never becomes earlier, also if gap or maximum change in the code: an open
    session ends by the new values from its next event on.
    """

    input_schema: pa.Schema
    """`__partition`, `__hash`, keys, `__first`, `__time` (equal: one event time), partials,
    `__rows`."""
    keys: tuple[str, ...]
    gap_ms: int
    max_ms: int
    aggregation: Aggregation
    early_results: bool = False

    @cached_property
    def result_schema(self) -> pa.Schema:
        return window_result_schema(
            self.aggregation, self.keys, self.state_schema, early=self.early_results
        )

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        timely, late = timely_partials(self.aggregation, arrived, given.before_ms)
        passed = self.expired_until(given.after_ms)
        touched = distinct(hashes(timely))
        looked_up = touched
        if passed is not None:
            looked_up = distinct(np.append(touched, hashes(state.due(passed))))
        found = state.find(looked_up) if len(looked_up) else self.state_schema.empty_table()
        if passed is not None:  # of a key, only an older version may be due
            due = hashes(found)[event_times(found) <= passed]
            touched = distinct(np.append(touched, due))
        found = rows_where(found, is_among(hashes(found), touched))
        rows = self._merged(
            pa.concat_tables([timely, found.select(timely.column_names)]), given.after_ms
        )
        is_closed = np.zeros(rows.num_rows, bool)
        if passed is not None:
            is_closed = event_times(rows) <= passed
        open_, closed = rows_where(rows, ~is_closed), rows_where(rows, is_closed)
        results = [self._results(closed)] if closed.num_rows else []
        if given.early and self.early_results:
            others = state.scan()
            others = rows_where(others, ~is_among(hashes(others), touched))
            both = pa.concat_tables([open_, others.select(open_.column_names)])
            results.append(self._results(self._merged(both, _ALL), early=True))
        return Step(
            results=pa.concat_tables(results) if results else self.result_schema.empty_table(),
            delta=with_version(open_, given.version, self.state_schema),
            rows_in=row_count(arrived),
            late=late,
        )

    def expired_until(self, watermark_ms: int | None) -> int | None:
        """A session is closed when its end < watermark (strict). Waiting rows that the watermark
        has passed are merged by the same step."""
        return None if watermark_ms is None else watermark_ms - 1

    def _merged(self, rows: pa.Table, until_ms: int | None) -> pa.Table:
        """Merges rows of one session before `until_ms`, and later ones of one event time."""
        if rows.num_rows == 0:
            return rows
        until = -_ALL if until_ms is None else until_ms
        (key,) = key_codes(self.keys, rows)
        order = order_by(key, first_times(rows), event_times(rows))
        key, first, end = key[order], first_times(rows)[order], event_times(rows)[order]
        begins = self._begins(key, first, end)
        session = np.cumsum(begins) - 1
        waited = first == end
        waits = waited & (first >= until)
        moved = np.minimum(first + self.gap_ms, first[begins][session] + self.max_ms)
        end = np.where(waited & ~waits, moved, end)
        begins |= waits & (np.diff(first, prepend=first[0] - 1) != 0)
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(begins) - 1
        ends = np.empty(len(order), np.int64)
        ends[order] = end
        place = rows.schema.get_field_index(TIME_COLUMN)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(ends))
        return merge_sessions(self.aggregation, self.keys, rows, number)

    def _begins(self, key: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Per row, by key and time: True if it begins a session."""
        is_session = end > first
        reach = running_maximum(np.where(is_session, end, first + self.gap_ms), key)
        begins = is_session.copy()
        begins[0] = True
        begins[1:] |= (key[1:] != key[:-1]) | (first[1:] >= reach[:-1])
        # Rows without a gap between them: from each beginning on, the next one is at the maximum.
        starts = np.flatnonzero(begins)
        stops = np.append(starts[1:], len(first))
        while len(starts):
            limits = np.maximum(first[starts] + self.max_ms, end[starts])
            starts = first_at_least(limits, first, starts + 1, stops)
            is_inside = starts < stops
            starts, stops = starts[is_inside], stops[is_inside]
            begins[starts] = True
        return begins

    def _results(self, sessions: pa.Table, *, early: bool = False) -> pa.Table:
        return window_results(
            self.aggregation,
            self.keys,
            self.result_schema,
            sessions,
            first_times(sessions),
            event_times(sessions),
            early=early,
        )


__all__ = ["BoundedSessions"]
