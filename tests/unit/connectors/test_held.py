"""Held transactions: known by their ids, committed by any process, rolled back after any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dagster_jet.connectors.held import Fate, HeldCommitter, held_id, held_ids
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import ArtifactLostError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Claimed, Purpose, WriteRecord
from dagster_jet.snapshot.record import ExecutionRecord
from tests.unit.snapshot.test_coordinator import (
    CONFIG,
    NEW_JOB,
    Coordinator,
    tell,
)


@dataclass
class Database:
    """Prepared transactions, and rows with their epochs, as files: any process sees them."""

    folder: Path

    def prepare(self, transaction: TransactionId, row: int) -> Artifact:
        name = held_id(transaction)
        self.roll_back(name, before_execution=transaction.execution_id + 1)
        content = {"execution": transaction.execution_id, "epoch": transaction.epoch_id, "row": row}
        self._file(name).write_text(json.dumps(content))
        return Artifact("out", transaction.epoch_id, name, "rows", rows=1, bytes=8, checksum=row)

    def commit(self, held_id: str, artifact: Artifact) -> Fate:
        committed = self.folder / f"committed-{artifact.epoch_id}-{held_id.replace('/', '_')}"
        if committed.exists():
            return Fate.COMMITTED
        found = self._found(held_id)
        if found is None or found["epoch"] != artifact.epoch_id:
            return Fate.GONE
        self._file(held_id).rename(committed)
        return Fate.COMMITTED

    def roll_back(self, held_id: str, *, before_execution: int) -> bool:
        found = self._found(held_id)
        if found is None or found["execution"] >= before_execution:
            return False
        self._file(held_id).unlink()
        return True

    def close(self) -> None:
        pass

    def rows(self) -> list[int]:
        return sorted(json.loads(f.read_text())["row"] for f in self.folder.glob("committed-*"))

    def open(self) -> int:
        return len(list(self.folder.glob("prepared-*")))

    def _file(self, held_id: str) -> Path:
        return self.folder / f"prepared-{held_id.replace('/', '_')}"

    def _found(self, held_id: str) -> dict[str, int] | None:
        file = self._file(held_id)
        return json.loads(file.read_text()) if file.exists() else None


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    yield Database(tmp_path)


def writer(shard: int, epoch_id: int, execution_id: int = 5) -> TransactionId:
    return TransactionId("j", "out", 1, execution_id, epoch_id, shard, "a0")


def context(execution_id: int, held_writers: int = 0, **settings: bool) -> CommitContext:
    found = CommitContext("j", "out", 1, execution_id, recovering=True, held_writers=held_writers)
    return replace(found, **settings)


def committer(database: Database, writers: int = 2) -> HeldCommitter:
    return HeldCommitter("j", "out", writers, database)


def test_a_writers_two_ids_take_turns() -> None:
    ids = [held_id(writer(1, epoch)) for epoch in (7, 8, 9)]
    assert ids[0] == ids[2] != ids[1]
    assert set(ids) < set(held_ids("j", "out", 2)) and len(set(held_ids("j", "out", 2))) == 4


def test_the_next_epoch_writes_while_one_waits_and_each_is_committed_once(
    database: Database,
) -> None:
    first = [database.prepare(writer(shard, 7), shard) for shard in (0, 1)]
    second = [database.prepare(writer(shard, 8), 10 + shard) for shard in (0, 1)]
    for _ in range(2):  # by two processes, or again after a crash
        committer(database).commit(first, context(6))
    assert database.rows() == [0, 1] and database.open() == 2
    committer(database).commit(second, context(6))
    assert database.rows() == [0, 1, 10, 11]


def test_a_late_commit_does_not_touch_what_the_id_is_used_for_by_now(database: Database) -> None:
    old = database.prepare(writer(0, 7), 1)
    committer(database).commit([old], context(5))
    database.prepare(writer(0, 9, execution_id=6), 2)
    committer(database).commit([old], context(5))
    assert database.rows() == [1] and database.open() == 1


def test_what_another_parallelism_has_left_is_found_by_asking(database: Database) -> None:
    for shard in range(4):
        database.prepare(writer(shard, 7), shard)
    assert committer(database, writers=1).abort_orphans(context(6), ()) == 1
    assert committer(database, writers=1).abort_orphans(context(6, held_writers=4), ()) == 3
    assert database.open() == 0 and database.rows() == []


def test_a_sleeper_rolls_back_nothing_of_its_successor(database: Database) -> None:
    database.prepare(writer(0, 7, execution_id=6), 1)
    assert committer(database).abort_orphans(context(5), ()) == 0 and database.open() == 1


def test_a_transaction_that_was_rolled_back_is_never_silent(database: Database) -> None:
    lost = database.prepare(writer(0, 7), 1)
    database.roll_back(lost.token, before_execution=9)
    with pytest.raises(ArtifactLostError, match="1 rows was rolled back before its commit"):
        committer(database).commit([lost], context(6))
    told: list[Artifact] = []
    accepting = replace(context(6, accept_loss=True), report_lost=told.append)
    committer(database).commit([lost], accepting)
    assert told == [lost]


# --- what the record and the coordinator know -----------------------------------------------------


def test_the_record_keeps_the_most_writers_before_any_of_them_opens_a_transaction() -> None:
    before = replace(NEW_JOB, held_writers={"out": 4, "gone": 2})
    (reserve,) = tell(Coordinator(CONFIG), Claimed(before, held_writers={"out": 3, "new": 1}))
    assert isinstance(reserve, WriteRecord) and reserve.purpose is Purpose.STARTING
    assert reserve.record.held_writers == {"out": 4, "gone": 2, "new": 1}
    assert ExecutionRecord.from_bytes(reserve.record.to_bytes()) == reserve.record
