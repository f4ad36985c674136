"""Contract of a built-in stateful operator: a pure step over (input, state, watermark).

An operator owns no state and does no I/O. One call of `step` processes the input of one shard,
reads the shard's state through a `StateReader`, and returns results and a *delta*: rows to append
to the state. State rows are never changed in place; `merge` combines several rows of one key.
Therefore

- a step may run twice: a task that is retried, or whose epoch is never acked, changes nothing;
- a step is the same in Spark's tasks and, without Spark, in memory (`MemoryState`);
- a snapshot is cheap: it writes the deltas since the last one.

Two kinds of state:

- *merged*: rows of one group add up (`merge` aggregates them): windows, rolling aggregates.
- *versioned*: every step that touches a key writes all rows of that key again under a higher
  `VERSION_COLUMN`; the newest version counts (`merge` is `newest_version`): sessions, stateful
  maps. A newer version must never expire (see `expired_until`) before an older one. A removed
  key leaves a *tombstone*, which hides its older rows as long as there are any.

Event times in state and input are int64 milliseconds since 1970.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.dag import Guarantee
from dagster_jet.operators.rows.casting import cast_rows
from dagster_jet.operators.rows.keys import key_codes
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN

HASH_COLUMN = "__hash"
"""int64, the key's `dagster_jet.core.partition.key_hash`; its partition is `pmod` of the hash."""
TIME_COLUMN = "__time"
"""int64 ms: the event time of an input row, or the time by which a state row expires."""
VERSION_COLUMN = "__version"
"""int64: version of the step that wrote a row; higher is newer."""
ARRIVAL_COLUMN = "__arrival"
"""int64: order in which the rows of a step arrived; for operators whose results depend on it. The
rows of one source partition have its order."""


@dataclass(frozen=True)
class StepInput:
    """Input of one shard in one step."""

    arrived: tuple[pa.Table, ...]
    """One table per input ordinal, in the schemas of `Operator.input_schemas`, in any row order."""
    before_ms: int | None
    """Watermark after earlier steps; events before it are late. None if there was none yet."""
    after_ms: int | None
    """Watermark after these rows, which closes results now. Never less than `before_ms`. With
    timers in processing time: the clock of the epoch."""
    version: int
    """Greater than the version of every earlier step on this state."""
    expired_until_ms: int | None = None
    """Time up to which earlier steps have expired state, perhaps under other settings."""
    early: bool = False
    """Early results are due: also emit open results, without closing them."""
    shard: int = 0
    shard_count: int = 1
    """The shard owns the partitions that are `shard` modulo `shard_count`."""
    fencing_token: int = 0
    """See `ProcessorContext.fencing_token`."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """The job's guarantee."""


@dataclass(frozen=True)
class Step:
    """Output of one step."""

    results: pa.Table
    """Rows in `Operator.result_schema`."""
    delta: pa.Table
    """Rows to append to the state, in `Operator.state_schema`. None of them has expired."""
    rows_in: int
    """Number of input rows, including those that a partial aggregate stands for."""
    late: int = 0
    """Number of them that were dropped because the watermark had passed them."""
    rejected: pa.Table | None = None
    """Dead letters, in `DEAD_LETTER_SCHEMA`: rows that a user's function failed on. The other
    output of the step is as if they had not arrived. None: the operator raises instead."""
    prepared: bool = False
    """True if an outside transaction may wait for the decision on the snapshot after this step."""


@dataclass(frozen=True)
class Intervals:
    """Closed intervals of times in ms, one per hash, in the order of the hashes."""

    first: np.ndarray
    last: np.ndarray

    def of(self, places: np.ndarray) -> Intervals:
        """Returns the intervals at these places."""
        return Intervals(self.first[places], self.last[places])


class StateReader(Protocol):
    """State of one shard before a step. Rows are in `Operator.state_schema`."""

    def due(self, until_ms: int) -> pa.Table:
        """Returns rows whose `Operator.time_column` is at most `until_ms`; not merged.

        For a versioned state the rows may include some that a newer version has replaced: call
        `find` with their hashes before using them.
        """
        ...

    def find(self, hashes: np.ndarray, within: Intervals | None = None) -> pa.Table:
        """Returns all rows with one of these (distinct, int64) hashes, merged: O(log n) per hash.

        Only for operators whose state has `HASH_COLUMN`.

        Args:
            within: restricts the rows to those whose time is in the interval of their hash; the
                cost then depends on these rows, not on all rows of the hash. Rows that `merge`
                combines have the same time.
        """
        ...

    def scan(self) -> pa.Table:
        """Returns all rows, merged. Reads the whole state: for early results and inspection."""
        ...


class Operator(ABC):
    """A stateful operator. Implementations are frozen, picklable dataclasses."""

    @property
    @abstractmethod
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        """One schema per input ordinal; the first column of each is `PARTITION_COLUMN`."""

    @property
    @abstractmethod
    def state_schema(self) -> pa.Schema:
        """Has `PARTITION_COLUMN` and `time_column`, and `HASH_COLUMN` if `find` is used."""

    @property
    @abstractmethod
    def result_schema(self) -> pa.Schema: ...

    @property
    @abstractmethod
    def time_column(self) -> str:
        """The int64 column by which state rows expire."""

    @abstractmethod
    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Combines state rows (at least one table). Associative, independent of order, idempotent
        on its own result. Called whenever runs are compacted, saved or restored."""

    @abstractmethod
    def step(self, given: StepInput, state: StateReader) -> Step: ...

    @abstractmethod
    def expired_until(self, watermark_ms: int | None) -> int | None:
        """Returns the time up to which state rows are expired under `watermark_ms`; None: none are.

        Expired rows are hidden from `StateReader` and dropped at the next compaction.
        """

    # --- what some operators have; a test finds names that are nearly one of these ---

    def groups(self, arrived: pa.Table) -> int:
        """Returns the number of groups in an input, however finely the first stage divides it."""
        return int(arrived.num_rows)

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        """Returns merged rows without tombstones: rows that only hide older rows of their key."""
        return merged

    def with_expiry(self, restored: pa.Table, expired_until_ms: int | None) -> pa.Table:
        """Returns rows of a snapshot with the times by which they expire now, if the state has
        these times.

        Args:
            expired_until_ms: rows up to this time had expired at the snapshot. All others expire
                later, so that a step can evict them.
        """
        return restored

    @property
    def shares_rows(self) -> bool:
        """Whether every shard needs some state rows at another parallelism. Each shard saves its
        own in the partition that has the shard's number."""
        return False

    def shared_rows(self, state: pa.Table, shard: int) -> pa.Table:
        """Returns such rows of other shards as rows of this shard. Called if `shares_rows`."""
        raise NotImplementedError


def merge_whole(operator: Operator, tables: Sequence[pa.Table]) -> pa.Table:
    """Merges all existing rows of some keys (`Operator.merge`) and drops tombstones, because no
    older rows are left for them to hide."""
    return operator.without_tombstones(operator.merge(tables))


def with_version(rows: pa.Table, version: int, schema: pa.Schema) -> pa.Table:
    """Returns rows as a step's delta to a versioned state of this schema."""
    versions = pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows)
    return cast_rows(rows.append_column(VERSION_COLUMN, versions), schema)


def newest_version(tables: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """`Operator.merge` of a versioned state: keeps the rows of each key's highest version.

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
        first = first_at_least(within.first, run_times, first, last)
        last = first_at_least(within.last + 1, run_times, first, last)
    counts = last - first
    total = int(counts.sum())
    if total == 0:
        return np.empty(0, np.int64)
    starts = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return starts + np.arange(total)


def first_at_least(
    wanted: np.ndarray, values: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> np.ndarray:
    """For each ascending range `values[start:stop]`, the first place of a value that is at least
    the wanted one. Runs one binary search over all ranges at once."""
    low, high = starts.copy(), stops.copy()
    while (searching := np.flatnonzero(low < high)).size:
        middle = (low[searching] + high[searching]) // 2
        is_less = values[middle] < wanted[searching]
        low[searching] = np.where(is_less, middle + 1, low[searching])
        high[searching] = np.where(is_less, high[searching], middle)
    return low


class MemoryState:
    """`StateReader` over tables in memory, for tests."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._table = operator.state_schema.empty_table()

    def append(self, delta: pa.Table, watermark_ms: int | None) -> None:
        """Appends a step's delta and drops rows that are expired under `watermark_ms`."""
        partitions = delta.column(PARTITION_COLUMN).unique()
        touched = pc.is_in(self._table.column(PARTITION_COLUMN), partitions)
        merged = merge_whole(self._operator, [self._table.filter(touched), delta])
        # In one chunk: else each step adds one, and every operation takes all of them one by one.
        table = pa.concat_tables([self._table.filter(pc.invert(touched)), merged])
        self._table = table.combine_chunks()
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
    "ARRIVAL_COLUMN",
    "HASH_COLUMN",
    "PARTITION_COLUMN",
    "TIME_COLUMN",
    "VERSION_COLUMN",
    "Intervals",
    "MemoryState",
    "Operator",
    "StateReader",
    "Step",
    "StepInput",
    "find_rows",
    "first_at_least",
    "merge_whole",
    "newest_version",
]
