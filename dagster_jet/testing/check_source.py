"""Conformance suite of a source: a test of the `SourceReader` contract.

def test_my_queue(tmp_path, spark):
    check_source(partial(SqliteQueue, f"{tmp_path}/q.db", "id long, text string"), send, spark)

It runs without the engine: it makes the engine's calls and simulates crashes. Spark only reads the
frames.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from dagster_jet.contract import Acknowledges, Backlog, Source
from dagster_jet.contract.part import check_is_a
from dagster_jet.errors import Reaction
from dagster_jet.execution.connector_errors import reaction_to
from dagster_jet.testing.source_place import (
    JOB,
    POLLS_MAX,
    STAGE,
    Consumer,
    MakeSource,
    Place,
    some,
)
from dagster_jet.testing.typed_rows import Item, Send, Typed, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONG = 1_000_000


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
    source = make_source()
    check_is_a(Source, source, job=JOB, stage=STAGE)
    kind = source.describe()["kind"]
    place = Place(make_source, send, spark, row_of, outages or {}, secrets, typed, many)
    for clause in _CLAUSES:
        try:
            clause(place)
        except Exception as error:
            sentence = (clause.__doc__ or "").strip()
            raise AssertionError(f"{kind} breaks its contract: {sentence} ({error})") from error


def _shows_no_secret(place: Place) -> None:
    """A definition pickles, describes itself as text with a kind, and shows no secret."""
    source = place.make_source()
    described = source.describe()
    assert all(isinstance(one, str) for pair in described.items() for one in pair), described
    shown = (repr(source), str(described), pickle.dumps(source).decode("latin-1"))
    assert not any(secret in text for secret in place.secrets for text in shown)


def _nothing_of_nothing(place: Place) -> None:
    """Without input no row waits and no split is planned; a reader can be closed at any time."""
    place.consumer().close()
    consumer = place.consumer()
    assert consumer.reader.plan(10) is None, "planned before the first poll"
    assert consumer.drain() == Counter() and consumer.reader.waiting().items == 0
    consumer.close()


def _each_row_once(place: Place) -> None:
    """Every row is read once, in splits of any size: nulls, long texts, many rows, rows sent while
    it reads; then no row waits."""
    consumer = place.consumer()
    consumer.drain(place.there.total())
    place.put(3)
    place.put(1, None)
    place.put(1, "x" * _LONG)
    consumer.drain(place.there.total(), max_rows=2)
    place.put(place.many)
    consumer.drain(place.there.total())
    place.put(2)
    place.expect(consumer.drain(place.there.total(), max_rows=1), place.there)
    assert consumer.reader.waiting().items == 0 and consumer.reader.plan(10) is None
    _finish(place, consumer)


def _to_its_end(place: Place) -> None:
    """Where the input is to end one poll brings all that is there, or polls do until the backlog is
    read, which ends although more rows are sent."""
    there = 20
    place.put(there)
    wanted = place.there
    consumer = place.consumer()
    reader = consumer.reader
    reader.mark_backlog()
    if reader.backlog() is Backlog.READ:
        consumer.poll()
        while consumer.epoch():
            pass
        place.expect(consumer.read, wanted)
        _finish(place, consumer)
        return
    for count in range(POLLS_MAX):
        consumer.poll()
        while consumer.epoch():
            pass
        if reader.backlog() is Backlog.READ:
            break
        if reader.backlog() is Backlog.HELD:
            snapshot = consumer.snapshot()
            consumer.acknowledge(snapshot.unacknowledged)
        assert count < POLLS_MAX // 4, "it goes on with what has come since"
        place.put(there)
    missing = wanted - consumer.read
    assert not missing, f"{missing.total()} rows are left, such as {some(missing)}"
    place.expect(consumer.drain(place.there.total()), place.there)
    _finish(place, consumer)


def _any_value(place: Place) -> None:
    """A value of any supported type arrives as it was sent, null too."""
    typed = place.typed
    if typed is None:
        return
    rows = typed.rows()
    reader = typed.make_source(typed.schema).open(JOB, STAGE, None)
    names = ["id", *(f"v{n}" for n in range(len(typed.types)))]

    def row_of(row: Any) -> Item:  # without the columns the connector adds for the engine
        values = row.asDict(recursive=True)
        return shown({name: values[name] for name in names})

    consumer = Consumer(reader, place.spark, row_of)
    typed.send(rows)
    place.expect(consumer.drain(len(rows)), Counter(map(shown, rows)))
    consumer.close()


def _poll_changes_nothing(place: Place) -> None:
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


def _replay(place: Place) -> None:
    """From every position, restored in a new reader from JSON, exactly the rest is read."""
    first = place.consumer()
    snapshots = [first.snapshot()] if first.drain() is not None else []
    for count in (3, 1, 4):
        place.put(count)
        first.poll()
        while first.epoch(max_rows=2):
            snapshots.append(first.snapshot())
    place.expect(first.drain(place.there.total()), place.there)
    forgets = first.forgets
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


def _acknowledged(place: Place) -> None:
    """Rows that are not acknowledged are delivered again, and dropped if a snapshot has them;
    acknowledged rows are never delivered again, even if acknowledged twice."""
    place.put(4)
    dead = place.consumer()
    dead.drain(place.there.total())
    if not dead.forgets:
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
    wanted = 1 if successor.reader.acknowledges is Acknowledges.POSITIONS else place.there.total()
    assert len(later.unacknowledged) == wanted, "not all of them are kept"
    _finish(place, successor)
    last = place.consumer()
    place.expect(last.drain(), Counter())
    last.close()


def _outages(place: Place) -> None:
    """A poll in an outage is to be made again, without loss or duplicates or a secret shown."""
    for name, outage in place.outages.items():
        place.put(2)
        consumer = place.consumer()
        consumer.drain(place.there.total())
        place.put(2)
        with outage():
            for _ in range(POLLS_MAX):
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


def _works_on_other_threads(place: Place) -> None:
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


def _finish(place: Place, consumer: Consumer) -> None:
    """Ends an execution after a snapshot of all rows read."""
    if consumer.forgets:
        snapshot = consumer.snapshot()
        consumer.acknowledge(snapshot.unacknowledged)
        place.acknowledged = Counter(place.sent)
    consumer.close()


_CLAUSES: tuple[Callable[[Place], None], ...] = (
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
