"""The conformance suite of a sink: `Sink`'s and `Committer`'s contract as a test anyone can run.

from functools import partial
from dagster_jet.testing import check_sink

def test_my_table(tmp_path):
    check_sink(partial(SqliteTable, f"{tmp_path}/a.db", "rows", f"{tmp_path}/staged"), read)

It runs without the engine: it does what the engine does with a sink, and what crashes do.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.contract import (
    CommitContext,
    KnowsCommits,
    ReopenableSink,
    Sink,
    TransactionId,
    reaction_to,
)
from dagster_jet.errors import Reaction, SinkError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system import failpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
MakeSink = Callable[[], Sink]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("number", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
        pa.field("price", pa.decimal128(10, 2)),
    ]
)
"""What every row of the suite has. `id` is unique and never null; a sink with a key has it."""

_JOB, _STAGE, _LONG = "check_sink", "out", 1_000_000


@dataclass
class _Place:
    """The place that all clauses write to, and what must be visible in it."""

    make_sink: MakeSink
    read: Callable[[], Iterable[Row]]
    spark: SparkSession | None
    several_processes: bool
    outages: Mapping[str, Callable[[], AbstractContextManager[object]]]
    steps: Sequence[str]
    secrets: Sequence[str]
    expected: dict[int, Row] = field(default_factory=dict)
    compared: dict[int, Row] = field(default_factory=dict)
    """What a reader has seen of a row that is right: to read it again costs little."""
    epoch_id: int = 0
    execution_id: int = 1

    def rows(self, count: int, **values: Any) -> list[Row]:
        first = 1 + max(self.expected, default=0) + 100_000 * self.epoch_id
        return [{**_row(first + n), **values} for n in range(count)]

    def stage(
        self,
        rows: Sequence[Row],
        *,
        shards: int = 1,
        execution_id: int | None = None,
        attempt: str = "a0",
        new_epoch: bool = True,
    ) -> tuple[Artifact, ...]:
        """Phase 1 of an epoch."""
        self.epoch_id += new_epoch
        by = self.execution_id if execution_id is None else execution_id
        rendered = self.rendered(rows)
        found: list[Artifact] = []
        for shard in range(shards):
            transaction = TransactionId(_JOB, _STAGE, 1, by, self.epoch_id, shard, attempt)
            writer = self.make_sink().open_writer(transaction)
            try:
                mine = pa.array(range(shard, len(rows), shards), pa.int64())
                for batch in _batches(rendered.take(mine)):
                    writer.write(batch)
                found += writer.prepare()
            except BaseException:
                writer.abort()
                raise
            finally:
                writer.close()
        return tuple(found)

    def commit(self, artifacts: Collection[Artifact], *, execution_id: int | None = None) -> None:
        """Phase 2, by an object that knows nothing."""
        _commit(self.make_sink(), artifacts, self.context(execution_id))

    def has_committed(self, artifacts: Collection[Artifact]) -> bool:
        """What the place says of them, asked by an object that knows nothing."""
        committer = self.make_sink().open_committer(_JOB, _STAGE)
        assert isinstance(committer, KnowsCommits)
        try:
            return committer.has_committed(artifacts, self.context())
        finally:
            committer.close()

    def abort_orphans(self, keep: Collection[str] = (), *, execution_id: int | None = None) -> None:
        committer = self.make_sink().open_committer(_JOB, _STAGE)
        committer.abort_orphans(self.context(execution_id), keep)
        committer.close()

    def context(self, execution_id: int | None = None) -> CommitContext:
        by = self.execution_id if execution_id is None else execution_id
        return CommitContext(_JOB, _STAGE, 1, by, recovering=True)

    def expect(self, *more: Sequence[Row]) -> None:
        """Exactly what was committed is visible, once, and as it was written."""
        self.expected.update({row["id"]: row for rows in more for row in rows})
        seen: dict[int, Row] = {}
        for row in self.read():
            assert row["id"] not in seen, f"row {row['id']} is there twice"
            seen[row["id"]] = row
        missing, surplus = self.expected.keys() - seen.keys(), seen.keys() - self.expected.keys()
        assert not missing, f"{len(missing)} rows are missing, such as {min(missing)}"
        assert not surplus, f"{len(surplus)} rows are visible that must not be"
        for number, row in seen.items():
            if self.compared.get(number) != row:
                _compare(self.expected[number], row)
                self.compared[number] = row

    def rendered(self, rows: Sequence[Row]) -> pa.Table:
        """As the sink's writers get them, in this order."""
        table, sink = pa.Table.from_pylist(list(rows), SCHEMA), self.make_sink()
        if not rows or sink.takes(SCHEMA):
            return table
        assert self.spark is not None, "this sink renders its rows with Spark: give spark="
        return sink.render(self.spark.createDataFrame(table)).toArrow()


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=1_000)
    return batches


def _row(number: int) -> Row:
    return {
        "id": number,
        "text": f"row {number} \u00e4\u20ac\n\"',",
        "number": number / 8,
        "flag": number % 2 == 0,
        "at": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc),
        "day": date(2026, 1, 2),
        "raw": b"\x00\xff",
        "price": Decimal("12.34"),
    }


_EXTREMES: Sequence[Row] = (
    {
        "number": -1e300,
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc),
        "day": date(1001, 1, 1),
        "raw": b"",
        "price": Decimal("-99999999.99"),
    },
    {
        "number": 0.1,
        "at": datetime(2200, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc),
        "day": date(9999, 12, 31),
        "raw": b"text",
        "price": Decimal("0.01"),
    },
)
"""Values that every place takes, and that a careless one changes."""


def _compare(expected: Row, seen: Row) -> None:
    for name in SCHEMA.names:
        if name in seen and not _is_same(expected[name], seen[name]):
            raise AssertionError(
                f"the {name} of row {expected['id']} is {seen[name]!r:.200} and not "
                f"{expected[name]!r:.200}"
            )


def _is_same(expected: Any, seen: Any) -> bool:
    """Whether it is this value, or what a place without such a type keeps of it."""
    if expected is None or seen is None:
        return expected is seen
    match expected:
        case bool():
            return seen in (True, False) and bool(seen) == expected
        case float():
            return float(seen) == expected
        case Decimal():
            return Decimal(str(seen)) == expected
        case bytes():
            found = base64.b64decode(seen) if isinstance(seen, str) else bytes(seen)
            return found == expected
        case datetime():
            # Python 3.10 knows no Z.
            text = seen.replace("Z", "+00:00") if isinstance(seen, str) else ""
            at = datetime.fromisoformat(text) if text else seen
            return bool(at.replace(tzinfo=at.tzinfo or timezone.utc) == expected)
        case date():
            return bool((date.fromisoformat(seen) if isinstance(seen, str) else seen) == expected)
    return bool(seen == expected)


def check_sink(
    make_sink: MakeSink,
    read: Callable[[], Iterable[Row]],
    *,
    spark: SparkSession | None = None,
    several_processes: bool = True,
    outages: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
    steps: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> None:
    """Check that a sink keeps every clause of its contract.

    Args:
        make_sink: returns the sink's definition; every call one for the **same** place, which is
            empty at the first call and takes the columns of `SCHEMA`. Picklable, unless
            `several_processes` is False.
        read: what a reader sees in it now. Of each row every column of `SCHEMA` that is there is
            compared; `id` is. A place without such a type may keep times and dates as ISO 8601 (no
            zone: UTC), bytes as base64, decimals as text or number, `flag` as 0 or 1.
        spark: for a sink that renders its rows with Spark.
        several_processes: also let another process commit. False for a place inside one process.
        outages: by a name for messages, what makes the place unusable while it is entered (a full
            disk, a locked table, a server that is down): a commit in it is to be retried.
        steps: fail points of the connector: it is made to fail at each, in both phases. Each has to
            be reached.
        secrets: texts that must not be in what is sent, shown or kept.

    Raises:
        AssertionError: names the sink and the clause that is broken.
    """
    kind = make_sink().describe()["kind"]
    place = _Place(make_sink, read, spark, several_processes, outages or {}, steps, secrets)
    for clause in _CLAUSES:
        place.execution_id += 3
        try:
            clause(place)
        except Exception as error:
            sentence = (clause.__doc__ or "").strip()
            raise AssertionError(f"{kind} breaks its contract: {sentence} ({error})") from error


def _shows_no_secret(place: _Place) -> None:
    """A definition pickles, describes itself as text with a kind, and shows no secret."""
    sink = place.make_sink()
    described = sink.describe()
    assert all(isinstance(one, str) for pair in described.items() for one in pair), described
    shown = [repr(sink), str(described)]
    if place.several_processes:
        shown.append(pickle.dumps(sink).decode("latin-1"))
    if isinstance(sink, ReopenableSink):
        shown.append(json.dumps(sink.destination()))
    assert not any(secret in text for secret in place.secrets for text in shown)


def _is_checked_at_every_start(place: _Place) -> None:
    """check passes for a new job at an empty place, and again."""
    for _ in range(2):
        place.make_sink().check(_JOB, _STAGE, is_new_job=True)


def _nothing_of_nothing(place: _Place) -> None:
    """A writer without rows leaves no artifact, and a commit of nothing changes nothing."""
    assert place.stage([], shards=2) == ()
    place.commit(())
    place.expect()


def _visible_with_phase_2(place: _Place) -> None:
    """Rows are invisible after phase 1 and visible, all of them, after phase 2; artifacts say how
    many."""
    rows = place.rows(10)
    artifacts = place.stage(rows, shards=2)
    assert sum(artifact.rows for artifact in artifacts) == len(rows)
    assert {(one.sink, one.epoch_id) for one in artifacts} == {(_STAGE, place.epoch_id)}
    place.expect()
    place.commit(artifacts)
    place.expect(rows)


def _says_what_is_committed(place: _Place) -> None:
    """A committer that says what is committed says it of what is, and of nothing else."""
    if not isinstance(place.make_sink().open_committer(_JOB, _STAGE), KnowsCommits):
        return
    rows = place.rows(10)
    artifacts = place.stage(rows, shards=2)
    assert not place.has_committed(artifacts), "it says so before phase 2"
    place.commit(artifacts)
    assert place.has_committed(artifacts), "it does not say so after phase 2"
    more = place.rows(2)
    later = place.stage(more)
    assert not place.has_committed(later), "it says so of the next epoch"
    assert not place.has_committed((*artifacts, *later)), "it says so of two epochs, one of two is"
    place.commit(later)
    assert place.has_committed((*artifacts, *later)), "it does not say so of two epochs"
    place.expect(rows, more)


def _any_value(place: _Place) -> None:
    """Any value is kept as it is: nulls, extremes, microseconds, empty and long texts, 10,000
    rows."""
    nulls = [{**dict.fromkeys(row), "id": row["id"], "flag": True} for row in place.rows(2)]
    place.commit(place.stage(nulls))
    place.expect(nulls)
    extremes = [{**row, **e} for row, e in zip(place.rows(2), _EXTREMES, strict=True)]
    place.commit(place.stage(extremes))
    place.expect(extremes)
    empty = place.rows(1, text="")
    place.commit(place.stage(empty))
    place.expect(empty)
    long = place.rows(2, text="x" * _LONG)
    place.commit(place.stage(long))
    place.expect(long)
    many = place.rows(10_000)
    place.commit(place.stage(many, shards=3))
    place.expect(many)


def _epochs_together(place: _Place) -> None:
    """Several epochs are committed in one call, in whatever order their artifacts come."""
    first = place.rows(3)
    staged = place.stage(first)
    second = place.rows(3)
    staged += place.stage(second, shards=2)
    place.commit(staged[::-1])
    place.expect(first, second)


def _again_and_again(place: _Place) -> None:
    """A commit that is repeated, by whatever object, changes nothing."""
    rows = place.rows(5)
    artifacts = place.stage(rows, shards=2)
    for _ in range(3):
        place.commit(artifacts)
        place.expect(rows)


def _by_another_process(place: _Place) -> None:
    """Another process finishes the commit, from what pickles."""
    rows = place.rows(5)
    artifacts = place.stage(rows)
    if place.several_processes:
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=_commit, args=(place.make_sink(), artifacts, place.context())
        )
        process.start()
        process.join()
        assert process.exitcode == 0, f"the other process ended with {process.exitcode}"
    place.commit(artifacts)
    place.expect(rows)


def _late_commit(place: _Place) -> None:
    """A commit that a dead execution makes late, after its successor's, changes nothing."""
    old = place.rows(4)
    staged = place.stage(old, shards=2, execution_id=place.execution_id - 1)
    place.commit(staged)
    place.expect(old)
    new = place.rows(4)
    place.commit(place.stage(new))
    place.commit(staged, execution_id=place.execution_id - 1)
    place.expect(new)


def _orphans(place: _Place) -> None:
    """What an older execution has staged and nobody has decided is removed, however many writers it
    had; what is decided, or newer, stays."""
    decided, later = place.rows(3), None
    kept = place.stage(decided, shards=3, execution_id=place.execution_id - 2)
    place.stage(place.rows(3), shards=3, execution_id=place.execution_id - 1)
    later = place.rows(3)
    newer = place.stage(later, shards=2)
    place.abort_orphans([artifact.token for artifact in kept])
    place.abort_orphans(
        [artifact.token for artifact in kept], execution_id=place.execution_id - 2
    )  # of a sleeper that wakes up
    place.commit(kept + newer)
    place.expect(decided, later)


def _zombie_writer(place: _Place) -> None:
    """What a writer of a dead execution prepares late is refused or never visible, and its epoch,
    written anew by the successor, is visible once."""
    rows = place.rows(3)
    place.stage(rows, execution_id=place.execution_id - 1)
    place.abort_orphans()
    fresh = place.stage(rows, new_epoch=False)
    with suppress(SinkError):
        place.stage(rows, execution_id=place.execution_id - 1, attempt="late", new_epoch=False)
    place.commit(fresh)
    place.abort_orphans()
    place.expect(rows)


def _attempts(place: _Place) -> None:
    """Of two attempts of a task only the one counts whose artifact is committed; an aborted one
    leaves nothing."""
    rows = place.rows(4)
    place.stage(rows, attempt="a0")
    counted = place.stage(rows, attempt="a1", new_epoch=False)
    aborted = place.make_sink().open_writer(
        TransactionId(_JOB, _STAGE, 1, place.execution_id, place.epoch_id, 0, "a2")
    )
    for batch in _batches(place.rendered(rows)):
        aborted.write(batch)
    aborted.abort()
    aborted.close()
    place.commit(counted)
    place.expect(rows)


def _crashes(place: _Place) -> None:
    """Whatever named step fails, the next execution rolls back and writes anew, or commits again,
    and every row is visible once."""
    for step in place.steps:
        for hit in (1, 2):
            place.execution_id += 1
            rows = place.rows(4)
            place.expect()
            staged: tuple[Artifact, ...] = ()
            failpoint.configure(f"{step}:{hit}=raise")
            try:
                staged = place.stage(rows, shards=2)
                place.commit(staged)
            except Exception:  # noqa: BLE001 - whatever it is that the step's failure causes
                place.execution_id += 1
            finally:
                hits = failpoint.hits(step)
                failpoint.configure("")
            assert hits or hit > 1, f"the step {step!r} was never reached"
            if not staged:
                place.abort_orphans()
                staged = place.stage(rows, shards=1, new_epoch=False)
            place.commit(staged)
            place.expect(rows)


def _outages(place: _Place) -> None:
    """A commit in the middle of an outage is to be retried or restarts the job, leaves nothing
    half done, and succeeds afterwards; what it says has no secret."""
    for name, outage in place.outages.items():
        rows = place.rows(4)
        artifacts = place.stage(rows, shards=2)
        committer = place.make_sink().open_committer(_JOB, _STAGE)
        with outage():
            try:
                committer.commit(artifacts, place.context())
            except Exception as error:  # noqa: BLE001 - classified below
                reaction = reaction_to(error, committer)
                wanted = (Reaction.RETRY, Reaction.RESTART, None)
                assert reaction in wanted, f"{name}: {error} asks for {reaction}"
                assert not any(secret in str(error) for secret in place.secrets), name
            else:
                raise AssertionError(f"{name}: the commit has succeeded")
        committer.commit(artifacts, place.context())
        committer.close()
        place.expect(rows)


def _reopened(place: _Place) -> None:
    """A sink that is reopened from its destination, as JSON, commits what was staged for it."""
    rows = place.rows(4)
    artifacts = place.stage(rows)
    sink = place.make_sink()
    if isinstance(sink, ReopenableSink):
        destination = json.loads(json.dumps(sink.destination()))
        sink = sink.reopen(destination)
        # What the engine puts in at every start: it is no part of what a sink is compared by.
        made: Any = place.make_sink()
        engines = {f.name: getattr(made, f.name) for f in fields(made) if not f.compare and f.init}
        sink = replace(sink, **engines)  # type: ignore[type-var]
    _commit(sink, artifacts, place.context())
    place.commit(artifacts)
    place.expect(rows)


def _commit(sink: Sink, artifacts: Collection[Artifact], context: CommitContext) -> None:
    committer = sink.open_committer(context.job, context.sink)
    try:
        committer.commit(artifacts, context)
    finally:
        committer.close()


_CLAUSES: tuple[Callable[[_Place], None], ...] = (
    _shows_no_secret,
    _is_checked_at_every_start,
    _nothing_of_nothing,
    _visible_with_phase_2,
    _says_what_is_committed,
    _epochs_together,
    _again_and_again,
    _by_another_process,
    _late_commit,
    _orphans,
    _zombie_writer,
    _attempts,
    _crashes,
    _outages,
    _reopened,
    _any_value,  # last: every clause reads all that is there
)
