"""Input read before a snapshot has it is noted, and its loss is noticed."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from dagster_jet import sources
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.source_polling import poll_now
from dagster_jet.execution.undecided_input import EPOCH_COLUMN, UndecidedInput
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig
from tests.servers.members import RedisServer
from tests.servers.proxy import Proxy


@pytest.fixture
def store() -> Iterator[Store]:
    urls = tuple(f"memory://{uuid.uuid4().hex}{m}" for m in "abc")
    with Store.open(StoreConfig(urls, allow_memory=True, partition_count=5)) as opened:
        yield opened


class Job:
    """A source of three files of one line. A snapshot has the first, two epochs the others."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        (folder / "in").mkdir()
        for number in range(3):
            self.file(number).write_text(f'{{"a": {number}}}\n')
        reader = self.reader()
        poll_now(reader)
        reader.plan(0)
        self.journal, self.position = reader.take_journal(), reader.position()
        for epoch_id in (2, 3):
            reader.plan(0)
            self.note(1, epoch_id, reader.take_journal())

    def file(self, number: int) -> Path:
        return self.folder / f"in/{number}.json"

    def reader(self) -> FilesReader:
        source = sources.files(f"{self.folder}/in", format="json", schema="a long")
        return source.open("j", "in", None)

    def note(self, execution_id: int, epoch_id: int, rows: pa.Table | None) -> None:
        assert rows is not None
        if not hasattr(self, "noting"):
            self.noting, self.noted = UndecidedInput(self.store, "j"), []
        epochs = pa.array([epoch_id] * rows.num_rows, pa.int64())
        self.noted.append(rows.append_column(EPOCH_COLUMN, epochs))
        self.noting.note("in", execution_id, self.noted)

    def start(self, execution_id: int, *, goes_on: bool = True) -> list[tuple[str, int]]:
        """Returns the rows that a new execution misses; it goes on if there are none, or they are
        accepted."""
        restored = self.reader()
        restored.restore(self.position, self.journal)
        undecided = UndecidedInput(self.store, "j")
        lost = undecided.check("in", restored)
        if goes_on:
            undecided.take_over("in", execution_id)
        return [(Path(one.shown.split(" ")[0]).name, one.epoch_id) for one in lost]


def test_a_note_that_arrives_late_does_not_replace_its_successor(tmp_path: Path) -> None:
    """The network has kept the first epoch's, and the client has written it again."""
    with RedisServer() as server, Proxy(urlsplit(server.url).port or 0) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with Store.open(StoreConfig((url,), backup_count=0, partition_count=5)) as store:
            UndecidedInput(store, "other").note("in", 1, [pa.table({"a": [1]})])
            held = proxy.hold_next(lambda asked: b"EVALSHA" in asked and b"/in/1" in asked)
            job = Job(tmp_path, store)
            assert held.release()
            job.file(2).unlink()
            assert job.start(2, goes_on=False) == [("2.json", 3)]


def test_what_is_there_is_read_again_and_what_is_gone_is_missed(
    tmp_path: Path, store: Store
) -> None:
    job = Job(tmp_path, store)
    job.file(0).unlink()  # a snapshot has it: nobody needs it any more
    assert job.start(2) == []
    job.file(2).rename(tmp_path / "taken.json")
    for _ in range(2):
        assert job.start(3, goes_on=False) == [("2.json", 3)], "until somebody does something"
    shutil.copy(tmp_path / "taken.json", job.file(2))
    assert job.start(4) == []
    # What nobody has read yet is owed by every execution after that.
    job.file(1).unlink()
    assert job.start(5) == [("1.json", 2)]
    assert job.start(6) == [], "the loss was accepted"
    assert len(store.map("jobs/j/undecided").keys("")) == 1


def test_a_file_that_was_moved_out_of_the_source_counts_as_gone(
    tmp_path: Path, store: Store
) -> None:
    job = Job(tmp_path, store)
    job.file(1).rename(job.file(1).with_name(".1.json"))
    assert job.start(2, goes_on=False) == [("1.json", 2)]
    job.folder = tmp_path / "elsewhere"
    (job.folder / "in").mkdir(parents=True)
    assert job.start(2) == [("1.json", 2), ("2.json", 3)]


def test_what_a_snapshot_has_by_now_is_not_missed(tmp_path: Path, store: Store) -> None:
    """A note of an execution that has died behind the decision."""
    job = Job(tmp_path, store)
    reader = job.reader()
    poll_now(reader)
    reader.plan(10**6)
    job.journal, job.position = reader.take_journal(), reader.position()
    for number in range(3):
        job.file(number).unlink()
    assert job.start(2) == []


def test_notes_from_before_a_source_left_the_pipeline_are_forgotten(
    tmp_path: Path, store: Store
) -> None:
    """A snapshot of execution 2 does not have it. What execution 3 read again is missed."""
    job = Job(tmp_path, store)
    job.noting.note("in", 3, job.noted[1:])
    for number in range(3):
        job.file(number).unlink()
    undecided = UndecidedInput(store, "j")
    undecided.forget("in", before=3)
    assert [one.epoch_id for one in undecided.check("in", job.reader())] == [3]
    undecided.forget("in", before=4)
    assert undecided.check("in", job.reader()) == ()


def test_an_outage_stops_no_epoch_and_is_told_once(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, store)
    rows = job.noted.pop()
    opened: list[Any] = [*store._view.members.values()]
    members = [member._member for member in opened]
    for reachable in (False, False, True):
        for member in members:
            member.reachable = reachable
        with caplog.at_level(logging.WARNING):
            job.noting.note("in", 1, [*job.noted, rows])
    assert sum("could not be saved" in message for message in caplog.messages) == 1
    job.file(2).unlink()
    assert job.start(2) == [("2.json", 3)]


def test_what_a_failed_epoch_has_read_may_be_taken_away(tmp_path: Path, store: Store) -> None:
    """A row in it does not fit: whoever removes the file has been told. Not so the others'."""
    job = Job(tmp_path, store)
    restored = job.reader()
    restored.restore(job.position, job.journal)
    undecided = UndecidedInput(store, "j")
    assert undecided.check("in", restored) == ()
    undecided.take_over("in", 2)
    journals = SourceJournals({"in": restored}, SnapshotStore(store, "j"), undecided)
    poll_now(restored)
    for epoch_id in (2, 3):
        restored.plan(0)
        command = RunEpoch(2, epoch_id, None, terminal=False, final=False)
        journals.begin_epoch(command, {})
        journals.begun()
    journals.take_back(command, f"{job.file(2)}:1: {{")
    journals.close()
    job.file(2).unlink()
    assert job.start(3, goes_on=False) == []
    job.file(1).unlink()
    assert job.start(3) == [("1.json", 2)]


def test_only_the_input_at_fault_may_be_taken_away(tmp_path: Path, store: Store) -> None:
    """An epoch has read two files, and one of them has the row that does not fit."""
    job = Job(tmp_path, store)
    reader = job.reader()
    poll_now(reader)
    undecided = UndecidedInput(store, "j")
    journals = SourceJournals({"in": reader}, SnapshotStore(store, "j"), undecided)
    reader.plan(10**6)
    command = RunEpoch(2, 1, None, terminal=False, final=False)
    journals.begin_epoch(command, {})
    journals.begun()
    journals.take_back(command, None)
    journals.take_back(command, f"{job.file(2)}:1: {{")
    journals.close()
    for number in (1, 2):
        job.file(number).unlink()
    assert "1.json" in [name for name, _ in job.start(3)]
    assert "2.json" not in [name for name, epoch in job.start(3) if epoch == 1]


def test_a_note_of_nothing_is_a_note(tmp_path: Path, store: Store) -> None:
    """The only epoch behind the snapshot has failed for good, and its input was taken back."""
    job = Job(tmp_path, store)
    rows = job.noted.pop()
    job.noted.clear()
    job.noting.note("in", 1, [rows])
    job.noting.take_back("in", 1, 3, str(job.file(2)), [rows])
    job.file(2).unlink()
    assert job.start(2) == []
