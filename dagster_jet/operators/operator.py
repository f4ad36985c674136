"""What every built-in stateful operator is: a pure step over (input, state, watermark).

An operator owns no state and does no I/O. One call of `step` handles what one shard received, reads
the shard's state through a `StateReader`, and answers with results and a *delta*: rows to append to
the state. State rows are never changed in place; `merge` says what several rows of one key mean.
That makes an operator

- safe to run twice: a task that is retried, or whose epoch is never acked, has changed nothing;
- equal in both runtimes: the local runtime and Spark's tasks call the same step;
- cheap to snapshot: the deltas since the last snapshot are what the next one writes.

Two kinds of state:

- *merged*: rows of one group add up (`merge` aggregates them): windows, rolling aggregates.
- *versioned*: every step that touches a key writes all rows of that key anew under a higher
  `VERSION_COLUMN`; the newest version counts (`merge` is `newest_version`): sessions, stateful
  maps. A newer version must never expire (see `expired_until`) before an older one. A key that has
  ceased to be leaves a *tombstone*, which hides its older rows for as long as there are any.

Event times in state and input are int64 milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from dagster_jet.dag import Guarantee
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN

HASH_COLUMN = "__hash"
"""int64, the key's `dagster_jet.core.partition.key_hash`; its partition is `pmod` of it."""
TIME_COLUMN = "__time"
"""int64 ms: the event time of an input row, or whatever a state row expires by."""
VERSION_COLUMN = "__version"
"""int64: the step that wrote a row; higher is newer."""


@dataclass(frozen=True)
class StepInput:
    """What one shard is given in one step."""

    arrived: tuple[pa.Table, ...]
    """One table per input ordinal, in the schemas of `Operator.input_schemas`, in any row order."""
    before_ms: int | None
    """The watermark under which earlier steps ended: an event that it closes off is late. None
    as long as there was none."""
    after_ms: int | None
    """The watermark after these rows: what it closes is emitted now. Never less than before."""
    version: int
    """Greater than that of every earlier step on this state."""
    early: bool = False
    """Early results are due: also emit what is still open, without closing it."""
    shard: int = 0
    shard_count: int = 1
    """The shard owns the partitions that are `shard` modulo `shard_count`."""
    fencing_token: int = 0
    """See `ProcessorContext.fencing_token`."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """The job's."""


@dataclass(frozen=True)
class Step:
    """What one step did."""

    results: pa.Table
    """In `Operator.result_schema`."""
    delta: pa.Table
    """Rows to append to the state, in `Operator.state_schema`. None of them expired already."""
    rows_in: int
    """Input rows behind `arrived`, also those that a partial aggregate stands for."""
    late: int = 0
    """Of those, how many were dropped because the watermark had passed them."""
    rejected: pa.Table | None = None
    """Dead letters, in `DEAD_LETTER_SCHEMA`: rows that a user's function could not take; the step
    is as if they had not come. None: the operator has no dead letters, it raises."""
    prepared: bool = False
    """Something outside may wait for the decision about the snapshot behind this step."""


@dataclass(frozen=True)
class Intervals:
    """Closed intervals of times in ms, one for each of some hashes, in their order."""

    first: np.ndarray
    last: np.ndarray

    def of(self, places: np.ndarray) -> Intervals:
        """Those at these places."""
        return Intervals(self.first[places], self.last[places])


class StateReader(Protocol):
    """The living state of one shard before a step. Rows come in `Operator.state_schema`."""

    def due(self, until_ms: int) -> pa.Table:
        """Rows whose `Operator.time_column` is at most `until_ms`; not yet merged.

        Of a versioned state also rows that a newer version has replaced: ask `find` for the
        hashes that came back before believing any of it.
        """
        ...

    def find(self, hashes: np.ndarray, within: Intervals | None = None) -> pa.Table:
        """All rows with one of these (distinct, int64) hashes, merged. Costs O(log n) per hash.

        Only for operators whose state has `HASH_COLUMN`.

        Args:
            within: only rows whose time is in the hash's interval, which costs what they do and not
                what all rows of the hash do. Rows that `merge` puts together have one time.
        """
        ...

    def scan(self) -> pa.Table:
        """Everything, merged. Costs the whole state: for early results and inspection."""
        ...


class Operator(Protocol):
    """A stateful operator. Implementations are frozen, picklable dataclasses."""

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        """Per ordinal; every one has `PARTITION_COLUMN`, first."""
        ...

    @property
    def state_schema(self) -> pa.Schema:
        """Has `PARTITION_COLUMN` and `time_column`; `HASH_COLUMN` if `find` is used."""
        ...

    @property
    def result_schema(self) -> pa.Schema: ...

    @property
    def time_column(self) -> str:
        """The int64 column that state rows expire by."""
        ...

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """What these state rows (at least one table) come to: associative, order-free, idempotent
        on its own result. Called whenever runs are compacted, saved or restored."""
        ...

    def step(self, given: StepInput, state: StateReader) -> Step: ...

    def expired_until(self, watermark_ms: int | None) -> int | None:
        """State rows with a time up to this no longer matter under `watermark_ms`; None: all do.

        They are hidden from `StateReader` and dropped at the next compaction.
        """
        ...


@runtime_checkable
class LeavesTombstones(Protocol):
    """An operator in whose state some rows only say that older ones of their key are over."""

    def without_tombstones(self, merged: pa.Table) -> pa.Table: ...


@runtime_checkable
class SharesRows(Protocol):
    """An operator some of whose state rows every shard of another parallelism needs. Each shard
    has saved its own in the partition that has the shard's number."""

    def shared_rows(self, state: pa.Table, shard: int) -> pa.Table:
        """Those of other shards' rows, as rows of this one."""
        ...


@runtime_checkable
class ReadsOlderState(Protocol):
    """An operator whose state has had other formats."""

    def upgraded(self, saved: pa.Table) -> pa.Table:
        """State rows as of any format, as of today's."""
        ...


def merge_whole(operator: Operator, tables: Sequence[pa.Table]) -> pa.Table:
    """`Operator.merge` of all rows that there are of some keys: nothing older is left anywhere
    that a tombstone would have to hide, so tombstones go."""
    merged = operator.merge(tables)
    if isinstance(operator, LeavesTombstones):
        return operator.without_tombstones(merged)
    return merged


def newest_version(tables: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """`Operator.merge` of a versioned state: per key the rows of its highest version.

    The rows of one version of one key come from one step, so they are all in one table.
    """
    table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    if table.num_rows == 0:
        return table
    (codes,) = key_codes(keys, table)
    versions = table.column(VERSION_COLUMN).to_numpy()
    newest = np.full(codes.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, codes, versions)
    kept = versions == newest[codes]
    return table if kept.all() else table.filter(pa.array(kept))


def find_rows(
    run_hashes: np.ndarray,
    run_times: np.ndarray,
    hashes: np.ndarray,
    within: Intervals | None = None,
) -> np.ndarray:
    """Row numbers in a run, sorted by hash and then by time, whose hash is among `hashes` (sorted,
    distinct) and whose time is within the hash's interval."""
    first = np.searchsorted(run_hashes, hashes, side="left")
    last = np.searchsorted(run_hashes, hashes, side="right")
    if within is not None:
        first = _first_at_least(within.first, run_times, first, last)
        last = _first_at_least(within.last + 1, run_times, first, last)
    counts = last - first
    total = int(counts.sum())
    if total == 0:
        return np.empty(0, np.int64)
    starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return starts + np.arange(total)


def _first_at_least(
    wanted: np.ndarray, values: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> np.ndarray:
    """For each ascending range `values[start:stop]` the first place of a value that is at least
    the wanted one. A binary search in all of them at once."""
    low, high = starts.copy(), stops.copy()
    while (searching := np.flatnonzero(low < high)).size:
        middle = (low[searching] + high[searching]) // 2
        is_less = values[middle] < wanted[searching]
        low[searching] = np.where(is_less, middle + 1, low[searching])
        high[searching] = np.where(is_less, high[searching], middle)
    return low


class MemoryState:
    """`StateReader` over tables in memory: for the local runtime and for tests."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._table = operator.state_schema.empty_table()

    def append(self, delta: pa.Table, watermark_ms: int | None) -> None:
        """Takes a step's delta in and drops what is expired under `watermark_ms`."""
        self._table = merge_whole(self._operator, [self._table, delta])
        expired = self._operator.expired_until(watermark_ms)
        if expired is not None:
            live = np.asarray(self._times() > expired)
            self._table = self._table.filter(pa.array(live))

    def due(self, until_ms: int) -> pa.Table:
        return self._table.filter(pa.array(self._times() <= until_ms))

    def find(self, hashes: np.ndarray, within: Intervals | None = None) -> pa.Table:
        mine = self._table.column(HASH_COLUMN).to_numpy()
        wanted = np.isin(mine, hashes)
        if within is not None and len(hashes):
            order = np.argsort(hashes)
            places = order[np.minimum(np.searchsorted(hashes[order], mine), len(hashes) - 1)]
            interval, times = within.of(places), self._times()
            wanted &= (times >= interval.first) & (times <= interval.last)
        return self._table.filter(pa.array(wanted))

    def scan(self) -> pa.Table:
        return self._table

    def _times(self) -> np.ndarray:
        times: np.ndarray = self._table.column(self._operator.time_column).to_numpy()
        return times


__all__ = [
    "HASH_COLUMN",
    "PARTITION_COLUMN",
    "TIME_COLUMN",
    "VERSION_COLUMN",
    "Intervals",
    "LeavesTombstones",
    "MemoryState",
    "Operator",
    "ReadsOlderState",
    "SharesRows",
    "StateReader",
    "Step",
    "StepInput",
    "find_rows",
    "merge_whole",
    "newest_version",
]
