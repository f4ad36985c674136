"""Session windows: per key, events that follow each other in less than a gap.

The first stage sends *buckets*: per key and `floor(time / gap)` the first and last event time and
partials. All events of a bucket are less than a gap apart, so a bucket is a piece of one session,
and the step only ever merges intervals. State is versioned: a step reads the sessions of the keys
that received something and writes them anew, so that its cost follows the touched keys.

At-least-once: after a restart the events between the snapshot and the crash are counted again in
sessions that were open at the snapshot; a session emitted since then is emitted again, possibly
longer, if more of its events have arrived by then.
Source: Hazelcast Jet `SessionWindowP`; vectors.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from dagster_jet.processors.address import check_columns
from dagster_jet.processors.aggregation import Aggregation, row_count
from dagster_jet.processors.grouping import rows_where
from dagster_jet.processors.keys import key_codes
from dagster_jet.processors.lateness import event_times
from dagster_jet.processors.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
    newest_version,
)
from dagster_jet.processors.sorting import distinct, is_among, order_by
from dagster_jet.processors.window_results import (
    check_times,
    window_result_schema,
    window_results,
)

FIRST_TIME_COLUMN = "__first"
"""int64 ms: first event of a bucket or session. Its last event is `TIME_COLUMN`."""
_SESSION = "__session"


@dataclass(frozen=True)
class SessionWindows:
    """The operator. A session is [first event, last event + gap).

    It closes when its end is *before* the watermark, and an event is late when its time is:
    an event at the watermark itself can still come. Sessions that only touch (one ends where the
    next begins) stay apart. The first stage leaves late events out of the buckets; a bucket that
    is late as a whole is dropped here and counted.

    Why a newer version of a key outlives the older ones, as versions must: merging never makes a
    key's last event earlier, and a session that is not written anew closes under the watermark of
    the same step, hence is dead with all rows it was merged from.

    Changing the gap in the code: sessions in state keep their first and last events; ends are
    worked out with the new gap, and sessions merge under the new gap as soon as their key receives
    an event. What was emitted under the old gap is over.
    """

    input_schema: pa.Schema
    """`__partition`, `__hash`, keys, `__first`, `__time` (last event), partials, `__rows`."""
    keys: tuple[str, ...]
    gap_ms: int
    aggregation: Aggregation
    early_results: bool = False

    def __post_init__(self) -> None:
        check_columns(self, self.keys)

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        return (self.input_schema,)

    @cached_property
    def state_schema(self) -> pa.Schema:
        state = self.aggregation.state_schema(self.input_schema)
        return state.append(pa.field(VERSION_COLUMN, pa.int64()))

    @cached_property
    def result_schema(self) -> pa.Schema:
        return window_result_schema(
            self.aggregation, self.keys, self.state_schema, early=self.early_results
        )

    @property
    def time_column(self) -> str:
        return TIME_COLUMN

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """The newest sessions of every key."""
        return newest_version(tables, self.keys)

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        event_times(arrived)  # every row has to have one
        timely, late = _split_late(arrived, given.before_ms)
        check_times(event_times(timely))
        timely = self.aggregation.admit(timely)
        closed_until = self.dead_until(given.after_ms)
        touched = distinct(_hashes(timely))
        looked_up = touched
        if closed_until is not None:
            # Also while the watermark stands: under a shorter gap than before some are over.
            looked_up = distinct(np.append(touched, _hashes(state.due(closed_until))))
        found = state.find(looked_up) if len(looked_up) else self.state_schema.empty_table()
        concerned = is_among(_hashes(found), touched)
        pieces = rows_where(found, concerned).drop_columns([VERSION_COLUMN])
        sessions = self._merged(pa.concat_tables([timely, pieces.select(timely.column_names)]))
        versions = pa.repeat(pa.scalar(given.version, pa.int64()), sessions.num_rows)
        sessions = sessions.append_column(VERSION_COLUMN, versions).cast(self.state_schema)
        untouched = rows_where(found, ~concerned)
        delta, results = sessions, []
        if closed_until is not None:
            delta = rows_where(sessions, event_times(sessions) > closed_until)
            closed = [rows_where(t, event_times(t) <= closed_until) for t in (sessions, untouched)]
            results = [self._results(table) for table in closed if table.num_rows]
        if given.early and self.early_results:
            others = state.scan()
            others = rows_where(others, ~is_among(_hashes(others), touched))
            if closed_until is not None:
                others = rows_where(others, event_times(others) > closed_until)
            results += [self._results(table, early=True) for table in (delta, others)]
        return Step(
            results=pa.concat_tables(results) if results else self.result_schema.empty_table(),
            delta=delta,
            rows_in=row_count(arrived),
            late=late,
        )

    def dead_until(self, watermark_ms: int | None) -> int | None:
        """Last event + gap < watermark, strictly: the session is closed."""
        return None if watermark_ms is None else watermark_ms - self.gap_ms - 1

    def _merged(self, pieces: pa.Table) -> pa.Table:
        """Intervals of the same key that overlap become one session."""
        if pieces.num_rows < 2:
            return pieces
        (key,) = key_codes(self.keys, pieces)
        first = pieces.column(FIRST_TIME_COLUMN).to_numpy()
        order = order_by(key, first)
        key, first, last = key[order], first[order], event_times(pieces)[order]
        begins = np.ones(len(order), bool)
        reach = _running_maximum(last, key) + self.gap_ms
        begins[1:] = (key[1:] != key[:-1]) | (first[1:] >= reach[:-1])
        if begins.all():
            return pieces
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(begins) - 1
        merged = self.aggregation.merge(
            pieces.append_column(_SESSION, pa.array(number)),
            [_SESSION],
            [(FIRST_TIME_COLUMN, "min"), (TIME_COLUMN, "max")],
        )
        of_session = order[begins][merged.column(_SESSION).to_numpy()]
        names = [PARTITION_COLUMN, HASH_COLUMN, *self.keys]
        whose = pieces.select(names).take(pa.array(of_session))
        columns = {name: whose.column(name) for name in names}
        arrays = [
            columns[name] if name in columns else merged.column(name)
            for name in pieces.column_names
        ]
        return pa.Table.from_arrays(arrays, schema=pieces.schema)

    def _results(self, sessions: pa.Table, *, early: bool = False) -> pa.Table:
        return window_results(
            self.aggregation,
            self.keys,
            self.result_schema,
            sessions,
            sessions.column(FIRST_TIME_COLUMN).to_numpy(),
            event_times(sessions) + self.gap_ms,
            early=early,
        )


def _running_maximum(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The greatest of `values` so far, from the beginning of each group. `group` ascends.

    Ranks instead of values: a group's number times the row count, plus a rank, fits 64 bits and
    lets one accumulation over everything begin afresh at each group.
    """
    by_value = order_by(values)
    rank = np.empty(len(values), np.int64)
    rank[by_value] = np.arange(len(values))
    floor = group * len(values)
    highest = np.maximum.accumulate(floor + rank) - floor
    greatest: np.ndarray = values[by_value][highest]
    return greatest


def _split_late(table: pa.Table, watermark_ms: int | None) -> tuple[pa.Table, int]:
    if watermark_ms is None or table.num_rows == 0:
        return table, 0
    timely = rows_where(table, event_times(table) >= watermark_ms)
    return timely, row_count(table) - row_count(timely)


def _hashes(table: pa.Table) -> np.ndarray:
    hashes: np.ndarray = table.column(HASH_COLUMN).to_numpy()
    return hashes


__all__ = ["FIRST_TIME_COLUMN", "SessionWindows"]
