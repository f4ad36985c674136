"""The place that the clauses of `check_source` read from, with the calls that the engine makes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.contract import Backlog, Source, SourceReader
from dagster_jet.errors import Reaction
from dagster_jet.execution.connector_errors import reaction_to
from dagster_jet.execution.start_connectors import open_reader
from dagster_jet.pipeline.graph import SourceNode
from dagster_jet.testing.typed_rows import Item, Send, Typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeSource = Callable[[], Source]
JOB, STAGE, POLLS_MAX = "check_source", "in", 200
_PAUSE_S = 0.1


@dataclass(frozen=True)
class Snapshot:
    """A source's part of a snapshot, and the rows read before it."""

    position: str
    journal: pa.Table | None
    unacknowledged: dict[str, Any]
    read: Counter[Item]


@dataclass
class Consumer:
    """Drives a reader like the engine: polls run on a separate thread."""

    reader: SourceReader
    spark: SparkSession
    row_of: Callable[[Any], Item]
    read: Counter[Item] = field(default_factory=Counter)
    journal: list[pa.Table] = field(default_factory=list)
    """Newest first."""
    _own: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "check-source"), repr=False
    )

    @property
    def forgets(self) -> bool:
        """Whether acknowledged rows are not delivered again."""
        return self.reader.acknowledges.forgets

    def poll(self) -> None:
        """Raises the error of the poll."""
        self.reader.accept(self.on_own_thread(self.reader.poll))

    def poll_again(self) -> None:
        """Polls after an outage, with pauses, like the engine: clients need time to reconnect."""
        for _ in range(POLLS_MAX):
            try:
                return self.poll()
            except Exception as error:
                if reaction_to(error, self.reader) is not Reaction.RETRY:
                    raise
            time.sleep(_PAUSE_S)
        raise AssertionError("it is not read again")

    def on_own_thread(self, call: Callable[[], Any]) -> Any:
        return self._own.submit(call).result()

    def epoch(self, max_rows: int = 1_000_000) -> bool:
        """Plans and reads a split; False if no rows wait."""
        split = self.reader.plan(max_rows)
        if split is None:
            return False
        taken = self.reader.take_journal()
        self.journal[:0] = [] if taken is None else [taken]
        rows = self.reader.frame(self.spark, split).rows.collect()
        self._compare_prepared(split, rows)
        self.reader.verify(split, len(rows))
        self.read.update(map(self.row_of, rows))
        return True

    def _compare_prepared(self, split: Any, rows: list[Any]) -> None:
        """A prepared frame has the same rows, in one partition."""
        parameters = self.reader.split_parameters(split)
        if parameters is None:
            return
        places = len(parameters.partitions)
        prepared = self.reader.prepared_frame(self.spark, lambda: parameters.what, places)
        if prepared is not None:
            found = prepared.rows.collect()
            assert Counter(map(repr, found)) == Counter(map(repr, rows)), (
                "a prepared frame has other rows"
            )
            assert prepared.rows.rdd.getNumPartitions() == 1, "a prepared frame has one partition"

    def drain(self, wanted: int | None = None, max_rows: int = 1_000_000) -> Counter[Item]:
        """Reads until `wanted` rows were read, or all; returns all rows read since the start."""
        for _ in range(POLLS_MAX):
            self.poll()
            while self.epoch(max_rows):
                pass
            if wanted is None or self.read.total() >= wanted:
                return self.read
        return self.read

    def to_the_end(self) -> None:
        """Polls until all redelivered rows with known ids have come; these are not read again."""
        self.reader.mark_backlog()
        for _ in range(POLLS_MAX):
            if self.reader.backlog() is not Backlog.WAITING:
                return
            self.poll()

    def snapshot(self) -> Snapshot:
        reader = self.reader
        messages = reader.unacknowledged() if self.forgets else {}
        journal = pa.concat_tables(self.journal) if self.journal else None
        return Snapshot(
            json.dumps(reader.position()),
            journal,
            json.loads(json.dumps(messages)),
            Counter(self.read),
        )

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        if self.forgets:
            self.on_own_thread(lambda: self.reader.acknowledge(messages))

    def close(self) -> None:
        self.on_own_thread(self.reader.close)
        self._own.shutdown()


@dataclass
class Place:
    """The place that all clauses read from, and the rows sent to it."""

    make_source: MakeSource
    send: Send
    spark: SparkSession
    row_of: Callable[[Any], Item]
    outages: Mapping[str, Callable[[], AbstractContextManager[object]]]
    secrets: Sequence[str]
    typed: Typed | None
    many: int
    sent: Counter[Item] = field(default_factory=Counter)
    acknowledged: Counter[Item] = field(default_factory=Counter)
    """Rows that a queue has forgotten: they cannot be read any more."""

    def put(self, count: int = 1, text: str | None = "") -> None:
        first = 1 + max((number for number, _ in self.sent), default=0)
        rows = [(n, f"row {n}" if text == "" else text) for n in range(first, first + count)]
        self.send([{"id": number, "text": text} for number, text in rows])
        self.sent.update(rows)

    @property
    def there(self) -> Counter[Item]:
        return self.sent - self.acknowledged

    def consumer(self, snapshot: Snapshot | None = None) -> Consumer:
        """A reader of a new execution, restored from a snapshot if given."""
        reader = open_reader(SourceNode(STAGE, self.make_source()), JOB, None)
        consumer = Consumer(reader, self.spark, self.row_of)
        if snapshot is not None:
            reader.restore(json.loads(snapshot.position), snapshot.journal)
            consumer.journal = [] if snapshot.journal is None else [snapshot.journal]
            if consumer.forgets:
                reader.restore_unacknowledged(snapshot.unacknowledged)
        return consumer

    def expect(self, read: Counter[Item], wanted: Counter[Item]) -> None:
        missing, surplus = wanted - read, read - wanted
        both = f"; {surplus.total()} are too many, such as {some(surplus)}" if surplus else ""
        assert not missing, f"{missing.total()} rows are missing, such as {some(missing)}{both}"
        assert not surplus, f"{surplus.total()} rows are too many, such as {some(surplus)}"


def some(items: Counter[Item]) -> str:
    number, text = next(iter(items))
    return f"{number}: {text!r:.300}"
