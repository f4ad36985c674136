"""Conformance suite of a source: a test of the `SourceReader` contract.

def test_my_queue(tmp_path, spark):
    check_source(partial(SqliteQueue, f"{tmp_path}/q.db", "id long, text string"), send, spark)

It runs without the engine: it makes the engine's calls and simulates crashes. Spark only reads the
frames.
"""

from __future__ import annotations

import json
import math
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa

from dagster_jet.connectors.contract import (
    AcknowledgesPositions,
    Acknowledging,
    Backlog,
    KeepsAcknowledged,
    PreparesFrames,
    ReadsBacklog,
    Source,
    SourceReader,
    reaction_to,
)
from dagster_jet.errors import Reaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = tuple[int, str | None]
"""Row of the suite: its id, which is unique, and its text."""
MakeSource = Callable[[], Source]
Send = Callable[[list[dict[str, Any]]], None]

TYPES: Mapping[str, Sequence[Any]] = {
    "boolean": (True, False),
    "byte": (-(2**7), 2**7 - 1),
    "short": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "float": (0.5, -3.0),
    "double": (0.1, -1e300, math.inf, math.nan),
    "decimal(38,9)": (Decimal("12345678901234567890123456789.123456789"), Decimal("-0.000000001")),
    "string": ("é ☃ 🜚", 'a "b", c\\d'),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (
        datetime(1969, 12, 31, 23, 59, 59, 999_999, timezone.utc),
        datetime(2200, 1, 1, 0, 0, 0, 1, timezone.utc),
    ),
    "binary": (b"\x00\xff", b"text"),
    "array<long>": ([1, None, -3], []),
    "map<string,long>": ({"a": 1, "b": None}, {}),
    "struct<a:long,b:string>": ({"a": 1, "b": "x"}, {"a": None, "b": None}),
}
"""Values that `Typed` sends, by type."""


@dataclass(frozen=True)
class Typed:
    """A separate place, for rows with a column of every type that a source can carry."""

    make_source: Callable[[str], Source]
    """Returns the source's definition for a schema: `id long`, and the columns `v0`, `v1`, ... of
    `types`. The place is empty at the first call."""
    send: Send
    """Writes rows with these columns, as Python values; all but the id may be None."""
    types: Sequence[str] = tuple(TYPES)
    """Keys of `TYPES`."""

    @property
    def schema(self) -> str:
        return ", ".join(["id long", *(f"v{n} {kind}" for n, kind in enumerate(self.types))])

    def rows(self) -> list[dict[str, Any]]:
        """Rows with every value of every type, and nulls."""
        count = max(len(TYPES[kind]) for kind in self.types)
        rows = [
            {f"v{n}": TYPES[kind][i % len(TYPES[kind])] for n, kind in enumerate(self.types)}
            for i in range(count)
        ]
        nulls = dict.fromkeys(rows[0])
        return [{"id": i, **row} for i, row in enumerate([*rows, nulls])]


_JOB, _STAGE, _LONG, _POLLS_MAX, _PAUSE_S = "check_source", "in", 1_000_000, 200, 0.1


@dataclass(frozen=True)
class _Snapshot:
    """A source's part of a snapshot, and the rows read before it."""

    position: str
    journal: pa.Table | None
    unacknowledged: dict[str, Any]
    read: Counter[Item]


@dataclass
class _Consumer:
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

    def poll(self) -> None:
        """Raises the error of the poll."""
        self.reader.accept(self.on_own_thread(self.reader.poll))

    def poll_again(self) -> None:
        """Polls after an outage, with pauses, like the engine: clients need time to reconnect."""
        for _ in range(_POLLS_MAX):
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
        if not isinstance(self.reader, PreparesFrames):
            return
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
        for _ in range(_POLLS_MAX):
            self.poll()
            while self.epoch(max_rows):
                pass
            if wanted is None or self.read.total() >= wanted:
                return self.read
        return self.read

    def to_the_end(self) -> None:
        """Polls until all redelivered rows with known ids have come; these are not read again."""
        if isinstance(self.reader, ReadsBacklog):
            self.reader.mark_backlog()
            for _ in range(_POLLS_MAX):
                if self.reader.backlog() is not Backlog.WAITING:
                    return
                self.poll()

    def snapshot(self) -> _Snapshot:
        reader = self.reader
        messages = reader.unacknowledged() if _forgets(reader) else {}
        journal = pa.concat_tables(self.journal) if self.journal else None
        return _Snapshot(
            json.dumps(reader.position()),
            journal,
            json.loads(json.dumps(messages)),
            Counter(self.read),
        )

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        if _forgets(self.reader):
            reader = self.reader
            self.on_own_thread(lambda: reader.acknowledge(messages))

    def close(self) -> None:
        self.on_own_thread(self.reader.close)
        self._own.shutdown()


@dataclass
class _Place:
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

    def consumer(self, snapshot: _Snapshot | None = None) -> _Consumer:
        """A reader of a new execution, restored from a snapshot if given."""
        reader = self.make_source().open(_JOB, _STAGE, None)
        consumer = _Consumer(reader, self.spark, self.row_of)
        if snapshot is not None:
            reader.restore(json.loads(snapshot.position), snapshot.journal)
            consumer.journal = [] if snapshot.journal is None else [snapshot.journal]
            if _forgets(reader):
                reader.restore_unacknowledged(snapshot.unacknowledged)
        return consumer

    def expect(self, read: Counter[Item], wanted: Counter[Item]) -> None:
        missing, surplus = wanted - read, read - wanted
        both = f"; {surplus.total()} are too many, such as {_some(surplus)}" if surplus else ""
        assert not missing, f"{missing.total()} rows are missing, such as {_some(missing)}{both}"
        assert not surplus, f"{surplus.total()} rows are too many, such as {_some(surplus)}"


def _some(items: Counter[Item]) -> str:
    number, text = next(iter(items))
    return f"{number}: {text!r:.300}"


def check_source(
    make_source: MakeSource,
    send: Send,
    spark: SparkSession,
    *,
    row_of: Callable[[Any], Item] = lambda row: (row["id"], row["text"]),
    outages: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
    secrets: Sequence[str] = (),
    typed: Typed | None = None,
    many: int = 10_000,
) -> None:
    """Check that a source keeps every clause of its contract.

    Args:
        make_source: returns the source's definition; every call for the **same** place, which is
            empty at the first call.
        send: writes rows with `id` (a number) and `text` (or None) to the place.
        row_of: the id and the text of a row of the source.
        outages: context managers by name (for messages) that make the place unreadable while
            entered: a poll must then ask for a retry.
        secrets: texts that must not be in anything sent, shown or kept.
        typed: a second place of this kind for rows with columns of other types, if the source can
            carry any.
        many: number of rows sent at once; fewer for a slow stand-in of a server.

    Raises:
        AssertionError: names the source and the broken clause.
    """
    kind = make_source().describe()["kind"]
    place = _Place(make_source, send, spark, row_of, outages or {}, secrets, typed, many)
    for clause in _CLAUSES:
        try:
            clause(place)
        except Exception as error:
            sentence = (clause.__doc__ or "").strip()
            raise AssertionError(f"{kind} breaks its contract: {sentence} ({error})") from error


def _forgets(reader: SourceReader) -> TypeGuard[Acknowledging]:
    """Whether acknowledged rows are not delivered again."""
    return isinstance(reader, Acknowledging) and not isinstance(reader, KeepsAcknowledged)


def _shows_no_secret(place: _Place) -> None:
    """A definition pickles, describes itself as text with a kind, and shows no secret."""
    source = place.make_source()
    described = source.describe()
    assert all(isinstance(one, str) for pair in described.items() for one in pair), described
    shown = (repr(source), str(described), pickle.dumps(source).decode("latin-1"))
    assert not any(secret in text for secret in place.secrets for text in shown)


def _nothing_of_nothing(place: _Place) -> None:
    """Without input no row waits and no split is planned; a reader can be closed at any time."""
    place.consumer().close()
    consumer = place.consumer()
    assert consumer.reader.plan(10) is None, "planned before the first poll"
    assert consumer.drain() == Counter() and consumer.reader.waiting().items == 0
    consumer.close()


def _each_row_once(place: _Place) -> None:
    """Every row is read once, in splits of any size: nulls, long texts, many rows, rows sent while
    it reads; then no row waits."""
    place.put(3)
    place.put(1, None)
    place.put(1, "x" * _LONG)
    consumer = place.consumer()
    consumer.drain(place.there.total(), max_rows=2)
    place.put(place.many)
    consumer.drain(place.there.total())
    place.put(2)
    place.expect(consumer.drain(place.there.total(), max_rows=1), place.there)
    assert consumer.reader.waiting().items == 0 and consumer.reader.plan(10) is None
    _finish(place, consumer)


def _to_its_end(place: _Place) -> None:
    """Where the input is to end one poll brings all that is there, or polls do until the backlog is
    read, which ends although more rows are sent."""
    there = 20
    place.put(there)
    wanted = place.there
    consumer = place.consumer()
    reader = consumer.reader
    if not isinstance(reader, ReadsBacklog):
        consumer.poll()
        while consumer.epoch():
            pass
        place.expect(consumer.read, wanted)
        _finish(place, consumer)
        return
    reader.mark_backlog()
    assert reader.backlog() is not Backlog.READ, "read before the first poll"
    for count in range(_POLLS_MAX):
        consumer.poll()
        while consumer.epoch():
            pass
        if reader.backlog() is Backlog.READ:
            break
        if reader.backlog() is Backlog.HELD:
            snapshot = consumer.snapshot()
            consumer.acknowledge(snapshot.unacknowledged)
        assert count < _POLLS_MAX // 4, "it goes on with what has come since"
        place.put(there)
    missing = wanted - consumer.read
    assert not missing, f"{missing.total()} rows are left, such as {_some(missing)}"
    place.expect(consumer.drain(place.there.total()), place.there)
    _finish(place, consumer)


def _any_value(place: _Place) -> None:
    """A value of any supported type arrives as it was sent, null too."""
    typed = place.typed
    if typed is None:
        return
    rows = typed.rows()
    reader = typed.make_source(typed.schema).open(_JOB, _STAGE, None)
    names = ["id", *(f"v{n}" for n in range(len(typed.types)))]

    def row_of(row: Any) -> Item:  # without the columns the connector adds for the engine
        values = row.asDict(recursive=True)
        return _shown({name: values[name] for name in names})

    consumer = _Consumer(reader, place.spark, row_of)
    typed.send(rows)
    place.expect(consumer.drain(len(rows)), Counter(map(_shown, rows)))
    consumer.close()


def _shown(row: Mapping[str, Any]) -> Item:
    """A row with its values as text, because NaN is not equal to itself."""
    return row["id"], repr([_plain(value) for name, value in row.items() if name != "id"])


def _plain(value: Any) -> Any:
    match value:
        case bytearray():
            return bytes(value)
        case datetime():  # Spark's have no zone and are in local time
            return value.astimezone(timezone.utc)
    return value


def _poll_changes_nothing(place: _Place) -> None:
    """A poll beside an epoch changes nothing, neither the waiting rows nor the position, until its
    answer is accepted; an answer older than a split brings no row twice."""
    place.put(3)
    consumer = place.consumer()
    before = consumer.reader.position(), consumer.reader.waiting()
    found = consumer.on_own_thread(consumer.reader.poll)
    assert (consumer.reader.position(), consumer.reader.waiting()) == before
    consumer.reader.accept(found)
    late = consumer.on_own_thread(consumer.reader.poll)
    consumer.epoch()
    consumer.reader.accept(late)
    place.expect(consumer.drain(place.there.total()), place.there)
    _finish(place, consumer)


def _replay(place: _Place) -> None:
    """From every position, restored in a new reader from JSON, exactly the rest is read."""
    first = place.consumer()
    snapshots = [first.snapshot()] if first.drain() is not None else []
    for count in (3, 1, 4):
        place.put(count)
        first.poll()
        while first.epoch(max_rows=2):
            snapshots.append(first.snapshot())
    place.expect(first.drain(place.there.total()), place.there)
    forgets = _forgets(first.reader)
    if forgets:
        first.close()  # a broker keeps rows for a living consumer that got them
    for snapshot in snapshots:
        consumer = place.consumer(snapshot)
        rest = place.there - snapshot.read
        place.expect(consumer.drain(rest.total()), rest)
        consumer.close()
    again = place.consumer(snapshots[-1])
    again.read.update(snapshots[-1].read)
    again.drain(place.there.total())
    again.to_the_end()
    _finish(place, again)
    if not forgets:
        first.close()


def _acknowledged(place: _Place) -> None:
    """What is not acknowledged is delivered again, and dropped if a snapshot has it; acknowledged
    rows are never delivered again, even if acknowledged twice."""
    place.put(4)
    dead = place.consumer()
    dead.drain(place.there.total())
    if not _forgets(dead.reader):
        dead.close()
        return
    snapshot = dead.snapshot()
    dead.close()
    forgetful = place.consumer()
    place.expect(forgetful.drain(place.there.total()), place.there)
    forgetful.close()
    successor = place.consumer(snapshot)
    successor.acknowledge(snapshot.unacknowledged)
    successor.acknowledge(snapshot.unacknowledged)
    place.acknowledged.update(snapshot.read)
    place.put(2)
    place.expect(successor.drain(place.there.total()), place.there)
    later = successor.snapshot()
    assert not later.unacknowledged.keys() & snapshot.unacknowledged.keys(), "kept for ever"
    wanted = 1 if isinstance(successor.reader, AcknowledgesPositions) else place.there.total()
    assert len(later.unacknowledged) == wanted, "not all of them are kept"
    _finish(place, successor)
    last = place.consumer()
    place.expect(last.drain(), Counter())
    last.close()


def _outages(place: _Place) -> None:
    """A poll in an outage is to be made again, without loss or duplicates or a secret shown."""
    for name, outage in place.outages.items():
        place.put(2)
        consumer = place.consumer()
        consumer.drain(place.there.total())
        place.put(2)
        with outage():
            for _ in range(_POLLS_MAX):
                try:
                    consumer.poll()  # it may return rows from before the outage
                except Exception as error:  # noqa: BLE001 - classified below
                    reaction = reaction_to(error, consumer.reader)
                    assert reaction is Reaction.RETRY, f"{name}: {error!r} asks for {reaction}"
                    assert not any(secret in str(error) for secret in place.secrets), name
                    break
            else:
                raise AssertionError(f"{name}: polls succeed")
        consumer.poll_again()
        place.expect(consumer.drain(place.there.total()), place.there)
        _finish(place, consumer)


def _works_on_other_threads(place: _Place) -> None:
    """Everything but poll, acknowledge and close works on other threads than those."""
    place.put(2)
    consumer = place.consumer()
    consumer.poll()
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            consumer.drain(place.there.total())
            consumer.snapshot()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    place.expect(consumer.read, place.there)
    _finish(place, consumer)


def _finish(place: _Place, consumer: _Consumer) -> None:
    """Ends an execution after a snapshot of all rows read."""
    if _forgets(consumer.reader):
        snapshot = consumer.snapshot()
        consumer.acknowledge(snapshot.unacknowledged)
        place.acknowledged = Counter(place.sent)
    consumer.close()


_CLAUSES: tuple[Callable[[_Place], None], ...] = (
    _shows_no_secret,
    _nothing_of_nothing,
    _works_on_other_threads,
    _acknowledged,
    _to_its_end,
    _any_value,
    _poll_changes_nothing,
    _replay,
    _outages,
    _each_row_once,  # last: every clause reads all rows there
)
