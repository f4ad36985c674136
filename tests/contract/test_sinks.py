"""Sinks keep their contract; and the suite names what one that does not has broken."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_jet.connectors.staging import (
    RowsWriter,
    Segment,
    SegmentWriter,
    rows_of,
    segments_by_epoch,
)
from dagster_jet.contract import CommitContext, Committer, Refused, TransactionId
from dagster_jet.errors import Reaction
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point
from dagster_jet.testing.check_sink import check_sink
from tests.contract.connector_places import SqliteTable, as_sqlite, locked, read_table, table

STAGING_STEPS = ("staging.put.before", "staging.finished")


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    check_sink(
        partial(table, tmp_path),
        partial(read_table, tmp_path),
        outages={"a locked table": partial(locked, tmp_path / "a.db")},
        steps=STAGING_STEPS,
    )


# --- planted bugs ---------------------------------------------------------------------------------


def _insert(sink: SqliteTable, batches: Iterable[pa.RecordBatch]) -> None:
    with closing(sqlite3.connect(sink.path)) as database, database:
        _insert_into(database, batches)


def _insert_into(database: sqlite3.Connection, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        rows = [list(map(as_sqlite, row.values())) for row in batch.to_pylist()]
        database.executemany("insert into results values (?, ?, ?, ?, ?, ?, ?, ?)", rows)


class Broken(SqliteTable):
    """Commits as its class says."""

    def open_committer(self, job: str, stage: str) -> Any:
        return type(self).Committer(self, super().open_committer(job, stage))


@dataclass
class Wrapped(Committer):
    sink: SqliteTable
    right: Any

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        self.right.commit(artifacts, context)

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        return int(self.right.abort_orphans(context, keep))

    def reaction(self, error: Exception) -> Any:
        return self.right.reaction(error)

    def close(self) -> None:
        pass


class NoMarker(Broken):
    class Committer(Wrapped):
        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            for _, segments in segments_by_epoch(self.sink.area, artifacts):
                _insert(self.sink, rows_of(segments))


class MarkerByExecution(Broken):
    """The marker names who commits, so that a late commit finds none."""

    class Committer(Wrapped):
        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            kept = {n: self.sink.area.get(n) for n in self.sink.area.names()}
            self.right.commit(artifacts, replace(context, repeatable=True))
            for name, data in kept.items():
                if data is not None:
                    self.sink.area.put(name, data)


class KnowsTheNewestAlone(Broken):
    """An older execution finds the fence; in this one an epoch is done if it is the last one."""

    class Committer(Wrapped):
        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            fence = Path(f"{self.sink.path}.fence")
            execution, newest = map(int, fence.read_text().split()) if fence.exists() else (0, 0)
            for epoch_id, segments in segments_by_epoch(self.sink.area, artifacts):
                if context.execution_id < execution or epoch_id == newest:
                    continue
                _insert(self.sink, rows_of(segments))
                execution, newest = context.execution_id, epoch_id
                fence.write_text(f"{execution} {newest}")


class AbortsTheNewer(Broken):
    class Committer(Wrapped):
        def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
            self.sink.area.delete(self.sink.area.names())
            return 0


class CommitsWhatItFinds(Broken):
    class Committer(Wrapped):
        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            named = {one.token.rpartition("/")[0] for one in artifacts}
            for name in self.sink.area.names():
                if name.rpartition("/")[0] not in named:
                    _insert(self.sink, pa.ipc.open_stream(self.sink.area.get(name)))
            self.right.commit(artifacts, context)


class FailsForGood(Broken):
    class Committer(Wrapped):
        def reaction(self, error: Exception) -> Any:
            return Reaction.FAIL


class SaysWhatIsStaged(Broken):
    """Claims that staged artifacts are committed."""

    class Committer(Wrapped):
        def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
            names = self.sink.area.names()
            return all(
                any(n in names for n in Segment(self.sink.area, one).names) for one in artifacts
            )


class NeverSaysSo(Broken):
    class Committer(Wrapped):
        def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
            return False


class WritesAtOnce(Broken):
    Committer = Wrapped

    def open_writer(self, transaction: TransactionId) -> Any:
        segment = SegmentWriter(self.area, transaction, self.table)

        class AtOnce(RowsWriter):
            def write(writer, batch: Any) -> None:  # noqa: N805
                super().write(batch)
                _insert(self, [batch])

        return AtOnce(segment)


class Truncates(Broken):
    Committer = Wrapped

    def open_writer(self, transaction: TransactionId) -> Any:
        class Short(RowsWriter):
            def write(writer, batch: Any) -> None:  # noqa: N805
                rows = [{**row, "text": (row["text"] or "")[:1000]} for row in batch.to_pylist()]
                super().write(pa.RecordBatch.from_pylist(rows, batch.schema))

        return Short(SegmentWriter(self.area, transaction, self.table))


class CutsMicroseconds(Broken):
    Committer = Wrapped

    def open_writer(self, transaction: TransactionId) -> Any:
        class Cut(RowsWriter):
            def write(writer, batch: Any) -> None:  # noqa: N805
                place = batch.schema.get_field_index("at")
                cut = pc.floor_temporal(batch.column(place), unit="millisecond")
                super().write(batch.set_column(place, "at", cut))

        return Cut(SegmentWriter(self.area, transaction, self.table))


class CommitsTheNewestEpoch(Broken):
    """Commits only the newest epoch when a call names several."""

    class Committer(Wrapped):
        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            newest = max((one.epoch_id for one in artifacts), default=0)
            self.right.commit([one for one in artifacts if one.epoch_id == newest], context)


class StagesInMemory(Broken):
    """Keeps staged rows in memory: another process finds none and takes them for committed."""

    Committer = Wrapped
    chunks: ClassVar[dict[str, bytes]] = {}

    @property
    def area(self) -> Any:
        return MemoryArea(self.chunks)


@dataclass(frozen=True)
class MemoryArea:
    chunks: dict[str, bytes]

    def put(self, name: str, data: bytes) -> None:
        self.chunks[name] = data

    def get(self, name: str) -> bytes | None:
        return self.chunks.get(name)

    def names(self) -> list[str]:
        return list(self.chunks)

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            self.chunks.pop(name, None)


class CommitsAllOfTheEpoch(Broken):
    """Commits all staged rows of the epoch, from any execution and attempt."""

    class Committer(Wrapped):
        same_execution = False

        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            named = {one.token.rpartition("/")[0]: one.token.split("-") for one in artifacts}
            for name in self.sink.area.names():
                segment = name.rpartition("/")[0]
                if segment not in named and self.is_same(name.split("-"), named.values()):
                    _insert(self.sink, pa.ipc.open_stream(self.sink.area.get(name)))
            self.right.commit(artifacts, context)

        def is_same(self, found: list[str], named: Iterable[list[str]]) -> bool:
            first = 0 if self.same_execution else 1
            return any(found[first:2] == one[first:2] for one in named)


class CommitsEveryAttempt(CommitsAllOfTheEpoch):
    """Commits also the failed task attempts of its own execution."""

    class Committer(CommitsAllOfTheEpoch.Committer):
        same_execution = True


class MarksAfterwards(Broken):
    """Rows first, and the marker in a transaction of its own."""

    class Committer(Wrapped):
        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            marked = f"{self.sink.path}.marked"
            done = Path(marked).read_text().split() if Path(marked).exists() else []
            for epoch_id, segments in segments_by_epoch(self.sink.area, artifacts):
                if str(epoch_id) in done:
                    continue
                _insert(self.sink, rows_of(segments))
                fail_point("planted.inserted")
                with open(marked, "a") as file:
                    file.write(f"{epoch_id}\n")


class AppliesByName(Broken):
    """Commits staged artifacts in the order of their names: shard 10 before shard 2."""

    class Committer(Wrapped):
        def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
            for artifact in sorted(artifacts, key=lambda one: (one.epoch_id, one.token)):
                self.right.commit((artifact,), replace(context, sink=artifact.token))


class TellsItsPassword(Broken):
    Committer = Wrapped

    def describe(self) -> dict[str, str]:
        return {**super().describe(), "url": "db://me:hunter2@host"}


class ForgetsItsStaging(Broken):
    """Looks for staged rows in another folder after it is reopened."""

    Committer = Wrapped

    def destination(self) -> dict[str, Any]:
        return {**super().destination(), "staging": f"{self.staging}/elsewhere"}


@pytest.mark.parametrize(
    ("bug", "clause"),
    [
        (NoMarker, "A commit that is repeated"),
        (MarkerByExecution, "A commit that is made again after its successors"),
        (KnowsTheNewestAlone, "A commit that is made again after its successors"),
        (AbortsTheNewer, "Artifacts that an older execution staged"),
        (
            CommitsWhatItFinds,
            "Artifacts that an older execution|Rows that a writer of a dead",
        ),
        (FailsForGood, "A commit in the middle of an outage"),
        (SaysWhatIsStaged, "A committer that says what is committed"),
        (NeverSaysSo, "A committer that says what is committed"),
        (WritesAtOnce, "Rows are invisible after phase 1"),
        (Truncates, "Any value is kept as it is"),
        (CutsMicroseconds, r"Rows are invisible after phase 1(.|\n)*the at of row \d+ is"),
        (CommitsTheNewestEpoch, "Several epochs are committed in one call"),
        (StagesInMemory, "Another process finishes the commit"),
        (CommitsAllOfTheEpoch, "Rows that a writer of a dead execution prepares late"),
        (CommitsEveryAttempt, "If a task ran twice"),
        (MarksAfterwards, "Whatever named step fails"),
        (AppliesByName, "Rows of twelve writers"),
        (TellsItsPassword, "shows no secret"),
        (ForgetsItsStaging, "A sink that is reopened from its destination"),
    ],
)
def test_a_planted_bug_is_named(tmp_path: Path, bug: type[SqliteTable], clause: str) -> None:
    with pytest.raises(AssertionError, match=f"sqlite_table breaks its contract: .*{clause}"):
        check_sink(
            partial(table, tmp_path, bug),
            partial(read_table, tmp_path),
            several_processes=bug is StagesInMemory,
            outages={"a locked table": partial(locked, tmp_path / "a.db")},
            steps=("planted.inserted",) if bug is MarksAfterwards else (),
            secrets=("hunter2",),
        )


@dataclass(frozen=True)
class Picky(SqliteTable):
    """Has a table that never takes a NaN, but refuses only the values in `seen`."""

    seen: tuple[Any, ...] = ()

    def refused(self, rows: pa.RecordBatch) -> dict[int, Refused]:
        numbers = rows.column("number").to_pylist()
        found = [n for n, value in enumerate(numbers) if repr(value) in self.seen]
        return {n: Refused("it is none", str(numbers[n])) for n in found}


@pytest.mark.parametrize(
    ("seen", "says"),
    [(("nan",), None), ((), "it names 0 rows"), (("nan", "-1e+300"), "a row that it takes")],
)
def test_a_sink_names_what_its_place_never_takes(
    tmp_path: Path, seen: tuple[str, ...], says: str | None
) -> None:
    def make() -> SqliteTable:
        made = table(tmp_path)
        return Picky(made.path, made.table, made.staging, seen=seen)

    check = partial(
        check_sink,
        make,
        partial(read_table, tmp_path),
        several_processes=False,
        refused=[{"number": float("nan")}],
    )
    if says is None:
        check()
        return
    with pytest.raises(AssertionError, match=f"named before it is staged(.|\n)*{says}"):
        check()


def test_a_sink_that_does_not_look_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"it takes .'number': nan. without looking"):
        check_sink(
            partial(table, tmp_path),
            partial(read_table, tmp_path),
            several_processes=False,
            refused=[{"number": float("nan")}],
        )


def test_a_step_that_is_never_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"\(the step 'staging.put' was never"):
        check_sink(
            partial(table, tmp_path),
            partial(read_table, tmp_path),
            several_processes=False,
            steps=("staging.finished", "staging.put"),
        )


def test_a_place_may_carry_the_id_and_the_text_only(tmp_path: Path) -> None:
    def read() -> list[dict[str, Any]]:
        return [{"id": row["id"], "text": row["text"]} for row in read_table(tmp_path)]

    check_sink(partial(table, tmp_path, CutsMicroseconds), read, several_processes=False)
