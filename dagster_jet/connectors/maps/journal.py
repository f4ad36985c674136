"""A map's event journal as a replayable source.

The position is the sequence number of the next event per partition; it is part of every snapshot.
Events that the journal dropped before they were read are counted and reported as lost; the job
continues after them.

A partition holds the watermark back while events are known to wait in it. A partition that was
read to its end does not: keys that are never written again must not stop all windows.

At-least-once: after a restart the events of the epochs since the last snapshot are read again, as
far as the journal still has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.maps.entry_columns import (
    ValueColumn,
    arrow_value_type,
    existing,
    key_text,
)
from dagster_jet.connectors.task_shares import FixedShares, TaskShares, WholeSplit
from dagster_jet.contract import (
    SOURCE_PARTITION_COLUMN,
    BadRowRule,
    Lag,
    Source,
    SourceFrame,
    SourceReader,
    SplitParameters,
)
from dagster_jet.core.choices import check_known
from dagster_jet.errors import SourceError
from dagster_jet.maps import PUT, JetMap, Journal, Record
from dagster_jet.maps.log_state import LogState
from dagster_jet.store import Store
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

STARTS = ("earliest", "latest")
_ROWS_PER_TASK = 5_000
_PARTITIONS_PER_BACKLOG_EPOCH = 64
"""Limits partitions per epoch: each costs a request and has its event time observed."""

Range = tuple[int, int, int]
"""Partition, first sequence number, last sequence number + 1."""
ObservedRange = tuple[int, int, int, int]
"""A range, and the index of its partition in `SourceFrame.partitions`, or -1."""


@dataclass(frozen=True)
class JournalSplit:
    """Ranges of events that one epoch reads."""

    ranges: tuple[Range, ...]
    observed: tuple[int, ...]
    """Partitions whose event time is observed: all of `ranges` if events stay unread; else none,
    because no partition then holds the watermark back."""

    @property
    def rows(self) -> int:
        return sum(stop - start for _, start, stop in self.ranges)

    @property
    def names(self) -> tuple[str, ...]:
        """`SourceFrame.partitions`."""
        return tuple(map(str, self.observed))

    @property
    def observed_ranges(self) -> tuple[ObservedRange, ...]:
        index = {partition: at for at, partition in enumerate(self.observed)}
        return tuple((*each, index.get(each[0], -1)) for each in self.ranges)


@dataclass(frozen=True)
class MapJournalSource(Source):
    """The changes of a map, in order within each partition (so, per key).

    Columns: kind ("put", "delete"), key, value (null for a delete), partition, sequence,
    timestamp (when the change was decided).
    """

    map: str
    value_schema: str | None = None
    start: str = "earliest"
    bound: JetMap | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_known("start", self.start, STARTS)

    def row_schema(self) -> str:
        """The columns as DDL."""
        value = self.value_column().type
        return (
            f"kind string, key string, value {value}, partition int, sequence bigint, "
            "timestamp timestamp"
        )

    def describe(self) -> dict[str, str]:
        return {"kind": "map_journal", "map": self.map, "start": self.start}

    def with_store(self, store: Store) -> MapJournalSource:
        return replace(self, bound=JetMap(store, self.map, None))

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> MapJournalReader:
        """Returns the reader without a request to the store, so that `poll` handles an outage."""
        assert self.bound is not None, "the engine puts it on the job's store first"
        return MapJournalReader(self, self.bound, job, stage, bad_rows)

    def value_column(self) -> ValueColumn:
        """Returns the conversion of values to a column, by the map's format."""
        format = self.bound.settings.format if self.bound is not None else "json"
        return ValueColumn(self.value_schema, format)


@dataclass(frozen=True)
class Tails:
    """Result of a poll: the journal's current end, and the first positions of a new job."""

    state: LogState
    first: dict[int, int] | None


@dataclass
class MapJournalReader(SourceReader):
    """Follows the tails on the driver, plans ranges and counts lost events."""

    is_partitioned = True

    source: MapJournalSource
    map: JetMap
    job: str
    stage: str
    bad_rows: BadRowRule | None
    _next: dict[int, int] | None = None
    """Next event to plan, by partition; None before the first poll of a new job."""
    _state: LogState | None = None
    _turn: int = 0
    _lost: int = 0

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        if position["next"] is not None:
            self._next = {int(partition): number for partition, number in position["next"].items()}

    def poll(self) -> Tails:
        state = existing(self.map.log.read_applied(), self.job, self.stage, self.map.name)
        following, first = self._next, None
        if self._state is None:
            self.value.check(self.job, self.stage, self.map.name)
            _ = self.journal  # raises if there is none
        if following is None:
            following = first = self._first_positions(state)
        for partition, number in list(following.items()):
            if number > state.tails.get(partition, 0):
                raise self._gone(
                    f"the journal of partition {partition} ends at "
                    f"{state.tails.get(partition, 0)}, event {number} is next"
                )
        return Tails(state, first)

    def accept(self, found: Tails) -> None:
        self._state = found.state
        if self._next is None:
            self._next = found.first

    def waiting(self) -> Lag:
        events = sum(stop - start for _, start, stop in self._waiting_ranges())
        return Lag(items=events, details={"events": events})

    def plan(self, max_rows: int) -> JournalSplit | None:
        if self._state is None:
            return None
        assert self._next is not None
        alive = self._skip_dropped()
        # Round robin: begin after the last partition of the previous plan.
        turn = [r for r in alive if r[0] >= self._turn] + [r for r in alive if r[0] < self._turn]
        waiting = sum(stop - start for _, start, stop in turn)
        if waiting > max_rows:
            turn = turn[:_PARTITIONS_PER_BACKLOG_EPOCH]
        # Take the same fraction of each partition: their event times stay close, so few windows
        # are open.
        in_turn = sum(stop - start for _, start, stop in turn)
        taken: list[Range] = []
        room = max_rows
        for partition, start, stop in turn:
            share = -(-(stop - start) * min(max_rows, in_turn) // in_turn)
            until = start + min(share, room)
            taken.append((partition, start, until))
            self._next[partition] = until
            self._turn = partition + 1
            room -= until - start
            if room == 0:
                break
        if not taken:
            return None
        observed = tuple(p for p, _, _ in taken) if waiting > max_rows else ()
        return JournalSplit(tuple(taken), observed)

    def partitions(self) -> dict[str, int]:
        return {str(p): stop - start for p, start, stop in self._waiting_ranges()}

    def frame(self, spark: SparkSession, split: JournalSplit) -> SourceFrame:
        return self._frame(self._raw(spark, self._shares(spark, split)), split.names)

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Sequence[ObservedRange]], partitions: int
    ) -> SourceFrame | None:
        names = tuple(map(str, range(partitions)))
        return self._frame(self._raw(spark, WholeSplit(split)), names)

    def split_parameters(self, split: JournalSplit) -> SplitParameters | None:
        return SplitParameters(split.observed_ranges, split.names)

    def _frame(self, raw: DataFrame, names: tuple[str, ...]) -> SourceFrame:
        if self.bad_rows is None:
            return SourceFrame(self.value.parsed(raw), partitions=names)
        frame = self.value.split(raw, self.bad_rows, self.stage, _position_column())
        return replace(frame, partitions=names)

    def verify(self, split: JournalSplit, rows: int) -> None:
        # Missing events were overwritten between plan and task.
        self._lost += max(0, split.rows - rows)

    def locate_bad_row(self, spark: SparkSession, split: JournalSplit) -> str | None:
        raw = self._raw(spark, self._shares(spark, split))
        return self.value.first_bad(raw, _position_column())

    def position(self) -> dict[str, Any]:
        if self._next is None:  # the next execution begins at `start`, too
            return {"next": None}
        return {"next": {str(p): number for p, number in sorted(self._next.items())}}

    def take_lost(self) -> int:
        lost, self._lost = self._lost, 0
        return lost

    @property
    def value(self) -> ValueColumn:
        """Conversion of values to a column."""
        return self.source.value_column()

    @property
    def journal(self) -> Journal:
        """The map's journal.

        Raises:
            SourceError: the map has no journal.
        """
        journal = self.map.journal
        if journal is None:
            raise SourceError(
                f"the map {self.map.name!r} has no journal.",
                job=self.job,
                stage=self.stage,
                cure="A journal is chosen when a map is created: "
                "jet.map(name, journal=JournalConfig()).",
            )
        return journal

    def _first_positions(self, state: LogState) -> dict[int, int]:
        if self.source.start == "latest":
            return dict(state.tails)
        ranges = {p: (state.oldest(p), tail) for p, tail in state.tails.items()}
        return self.journal.first_alive(ranges, _now_ms())

    def _waiting_ranges(self) -> list[Range]:
        if self._state is None or self._next is None:
            return []
        tails = sorted(self._state.tails.items())
        ranges = ((p, self._next.get(p, 0), tail) for p, tail in tails)
        return [(p, start, tail) for p, start, tail in ranges if start < tail]

    def _skip_dropped(self) -> list[Range]:
        """Returns the waiting ranges that still exist; skips and counts dropped events."""
        assert self._state is not None and self._next is not None
        ranges = self._waiting_ranges()
        kept = {p: (max(start, self._state.oldest(p)), stop) for p, start, stop in ranges}
        alive = self.journal.first_alive(kept, _now_ms())
        self._lost += sum(alive[p] - start for p, start, _ in ranges)
        self._next.update(alive)
        return [(p, alive[p], stop) for p, _, stop in ranges if alive[p] < stop]

    def _shares(self, spark: SparkSession, split: JournalSplit) -> TaskShares[ObservedRange]:
        tasks = min(spark.sparkContext.defaultParallelism, -(-split.rows // _ROWS_PER_TASK))
        return FixedShares(_shares(split.observed_ranges, tasks, split.rows))

    def _raw(self, spark: SparkSession, shares: TaskShares[ObservedRange]) -> DataFrame:
        task = JournalTask(self.journal_handle(), self.value, shares)
        schema = (
            f"kind string, key string, value {self.value.raw_type}, partition int, "
            f"sequence bigint, timestamp timestamp, {SOURCE_PARTITION_COLUMN} int"
        )
        numbers = spark.range(0, shares.tasks, 1, shares.tasks)
        return numbers.mapInArrow(OwnTask(task, self.stage), schema)

    def journal_handle(self) -> Journal:
        """Returns the journal with a picklable store handle, for tasks."""
        store = self.map.store
        return replace(self.journal, store=store.handle() if isinstance(store, Store) else store)

    def _gone(self, what: str) -> SourceError:
        return SourceError(
            f"the journal of the map {self.source.map!r} is not the one that was read: {what}.",
            job=self.job,
            stage=self.stage,
            cure="Run the pipeline under another name to start from the beginning.",
        )


@dataclass(frozen=True)
class JournalTask:
    """Reads events inside Spark tasks: one row per event that still exists."""

    journal: Journal
    value: ValueColumn
    shares: TaskShares[ObservedRange]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ranges in self.shares.to(batches):
            for partition, start, stop, index in ranges:
                records = list(self.journal.read(partition, start, stop))
                yield self._rows(partition, index, records)

    def _rows(self, partition: int, index: int, records: list[Record]) -> pa.RecordBatch:
        values = [self.value.of(r.value) if r.kind == PUT else None for r in records]
        times = pa.array([r.timestamp_ms * 1000 for r in records], pa.int64())
        return pa.RecordBatch.from_arrays(
            [
                pa.array([r.kind for r in records], pa.string()),
                pa.array([key_text(r.key) for r in records], pa.string()),
                pa.array(values, arrow_value_type(self.value)),
                pa.array([partition] * len(records), pa.int32()),
                pa.array([r.version for r in records], pa.int64()),
                times.cast(pa.timestamp("us", tz="UTC")),
                pa.array([index] * len(records), pa.int32()),
            ],
            names=[
                *("kind", "key", "value", "partition", "sequence", "timestamp"),
                SOURCE_PARTITION_COLUMN,
            ],
        )


def _shares(
    ranges: Sequence[ObservedRange], tasks: int, rows: int
) -> tuple[tuple[ObservedRange, ...], ...]:
    """Divides the ranges into `tasks` shares with about the same number of rows."""
    shares: list[list[ObservedRange]] = [[]]
    room = share = -(-rows // tasks)
    for partition, first, stop, index in ranges:
        start = first
        while start < stop:
            if room == 0:
                shares.append([])
                room = share
            until = min(stop, start + room)
            shares[-1].append((partition, start, until, index))
            room -= until - start
            start = until
    return tuple(map(tuple, [*shares, *([[]] * (tasks - len(shares)))]))


def _position_column() -> Column:
    from pyspark.sql import functions as F

    return F.concat_ws(":", F.col("partition"), F.col("sequence"))


def _now_ms() -> int:
    return round(time.time() * 1000)
