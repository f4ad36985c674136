"""A source's journal in the store: what a restart knows, and what a snapshot costs."""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dagster_jet import sources
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.connectors.files.places.local import LocalInput
from dagster_jet.connectors.files.places.place import Known, Listing, unknown
from dagster_jet.errors import InputLostError, SourceError
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.source_polling import poll_now
from dagster_jet.execution.undecided_input import UndecidedInput
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.storage.chunks import (
    superseded,
)
from dagster_jet.snapshot.storage.journal_parts import PARTS
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig
from tests.long import long

HOUR_MS = 3_600_000


@pytest.fixture
def partition_count() -> int:
    return 271


@pytest.fixture
def store(partition_count: int) -> Iterator[Store]:
    url = f"memory://{uuid.uuid4().hex}"
    with Store.open(
        StoreConfig((url,), allow_memory=True, backup_count=0, partition_count=partition_count)
    ) as opened:
        yield opened


@dataclass
class Life:
    """A job with one files source, its snapshots, and a clock."""

    folder: Path
    store: Store
    remember: str = "7 days"
    max_file_age: str | None = None
    epoch_id: int = 0
    now_ms: int = 1_800_000_000_000
    execution_id: int = 0
    chain: tuple[ChunkSet, ...] = ()
    position: dict[str, object] = field(default_factory=dict)
    read: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """A new execution, from the last snapshot."""
        self.execution_id += 1
        self.reader = self._reader()
        undecided = UndecidedInput(self.store, "j")
        snapshots = SnapshotStore(self.store, "j")
        self.journals = SourceJournals({"in": self.reader}, snapshots, undecided)
        if self.position:
            journal = snapshots.read_journal("in", self.chain)
            self.reader.restore(self.position, journal)
        assert undecided.check("in", self.reader) == ()
        undecided.take_over("in", self.execution_id)

    def _reader(self) -> FilesReader:
        place, remember, max_file_age = f"{self.folder}/in", self.remember, self.max_file_age
        source = sources.files(
            place, format="json", schema="v long", remember=remember, max_file_age=max_file_age
        )
        reader = source.open("j", "in", None)
        reader.now_ms = lambda: self.now_ms
        return reader

    def file(self, name: str, *, rows: int = 1, age_ms: int = 0) -> Path:
        path = self.folder / "in" / name
        path.write_text('{"v": 1}\n' * rows)
        self.set_time(path, self.now_ms - age_ms)
        return path

    def set_time(self, path: Path, at_ms: int) -> None:
        os.utime(path, ns=(at_ms * 10**6, at_ms * 10**6))

    def epoch(
        self, *, snapshot: bool = True, decided: bool = True, max_rows: int = 10**9
    ) -> ChunkSet | None:
        """Reads what is there; with a snapshot, the set that it has written, if any."""
        self.epoch_id += 1
        poll_now(self.reader)
        split = self.reader.plan(max_rows) or ()
        command = RunEpoch(
            self.execution_id,
            self.epoch_id,
            self.epoch_id if snapshot else None,
            terminal=False,
            final=False,
        )
        self.journals.begin_epoch(command, {"in": self.chain})
        self.journals.begun()
        written, failure = self.journals.written("in")
        assert failure is None
        self.read.update(f"{Path(part.path).name}[{part.begin}" for part in split)
        if snapshot and decided:
            if written is not None:
                kept = (
                    ()
                    if written.is_base
                    else self.chain[superseded(self.chain, written.sequence) :]
                )
                self.chain = (*kept, written)
            self.journals.decided()
            self.position = self.reader.position()
        return written

    def close(self) -> None:
        self.journals.close()


@pytest.fixture
def life(tmp_path: Path, store: Store) -> Iterator[Life]:
    life = Life(tmp_path, store)
    yield life
    life.close()


def test_of_the_rows_of_one_file_in_one_snapshot_the_newest_counts(life: Life) -> None:
    """A large file is read in parts, and not every epoch ends in a snapshot."""
    life.file("first.json", age_ms=HOUR_MS)
    life.epoch()  # which is written whole
    life.file("large.json", rows=10**6 * 2)
    life.epoch(snapshot=False, max_rows=10_000)
    life.epoch(max_rows=10_000)
    read_to = life.reader._waiting.first.begin
    life.start()
    poll_now(life.reader)
    assert life.reader._waiting.first.begin == read_to > 0


def test_a_snapshot_costs_what_is_new_and_a_share_of_the_journal(life: Life) -> None:
    for number in range(1000):
        life.file(f"{number:05d}.json")
    first = life.epoch()
    assert first is not None and first.is_base and first.rows == 1000
    for number in range(2 * PARTS):
        life.file(f"new-{number}.json")
        written = life.epoch()
        assert written is not None and not written.is_base
        assert written.rows < 3 * 1200 / PARTS, written
        assert len(life.chain) <= PARTS
    life.start()
    assert poll_now(life.reader).items == 0
    assert set(life.read.values()) == {1} and len(life.read) == 1000 + 2 * PARTS


@pytest.mark.parametrize("partition_count", [5, 64, 271])
def test_a_failed_snapshot_is_made_good_by_the_next(life: Life) -> None:
    for number in range(200):
        life.file(f"{number}.json")
        life.epoch(decided=number % 3 != 1)
        if number % 51 == 50:
            life.start()
    life.epoch()
    assert set(life.read.values()) == {1} and len(life.read) == 200


def large(life: Life) -> Path:
    """A file that a snapshot has to a part."""
    path = life.file("large.json", rows=10**6 * 2)
    life.epoch(max_rows=10_000)
    assert 0 < life.reader._waiting.first.begin < path.stat().st_size
    return path


def test_the_rest_of_a_file_that_is_gone_is_missed(life: Life) -> None:
    """A snapshot has its beginning: nobody would ask for the rest any more."""
    path = large(life)
    kept, at_ms = path.read_bytes(), life.now_ms
    path.unlink()
    with pytest.raises(InputLostError, match="read to byte 1048576 of 18000000") as told:
        poll_now(life.reader)
    assert told.value.position == str(path) and "Put it back" in str(told.value)
    path.write_bytes(kept)
    life.set_time(path, at_ms)
    while life.reader.waiting().items:
        life.epoch()
    known = life.reader._read.get(str(path))
    assert known is not None and known.read_to is None
    path.unlink()
    life.epoch()  # it was read to its end


def test_a_rest_that_is_lost_is_told_once_and_given_up(life: Life) -> None:
    path = large(life)
    path.unlink()
    life.reader = life._reader()
    life.reader.restore(
        life.position, SnapshotStore(life.store, "j").read_journal("in", life.chain)
    )
    undecided = UndecidedInput(life.store, "j")
    (lost,) = undecided.check("in", life.reader, snapshot_epoch=7)
    assert lost.shown.startswith(f"{path} (18000000 bytes") and lost.epoch_id == 7
    # The loss is accepted.
    assert poll_now(life.reader).items == 0
    assert undecided.check("in", life.reader) == ()
    life.journals = SourceJournals(
        {"in": life.reader}, SnapshotStore(life.store, "j"), UndecidedInput(life.store, "j")
    )
    life.file("next.json")
    life.epoch()
    life.start()
    assert poll_now(life.reader).items == 0


# --- what is forgotten ----------------------------------------------------------------------------

DAY_MS = 24 * HOUR_MS


def go_on(life: Life, *, days: float, epochs: int) -> None:
    """Time goes on, and a file comes with each epoch; what was read is deleted."""
    for _ in range(epochs):
        life.now_ms += round(days * DAY_MS / epochs)
        path = life.file(f"on-{life.epoch_id:06d}.json")
        life.epoch()
        path.unlink()


def test_what_is_committed_and_gone_is_forgotten_in_time(life: Life) -> None:
    for number in range(50):
        life.file(f"{number}.json").unlink()
    stays = life.file("stays.json")
    go_on(life, days=6, epochs=2 * PARTS)
    assert len(life.reader._read) == 2 * PARTS + 1, "nothing yet"
    go_on(life, days=30, epochs=8 * PARTS)
    # Of 7 days, and of the turns it takes to see that a file is gone and to forget it.
    per_day = 8 * PARTS / 30
    assert len(life.reader._read) < (7 + 3) * per_day + 2 * PARTS
    for _ in range(2):
        life.start()
        assert poll_now(life.reader).items == 0
    assert life.position["files"] == len(life.reader._read)
    assert life.reader._read.get(str(stays)) is not None
    assert set(life.read.values()) == {1}


@pytest.mark.parametrize("restarts", [pytest.param(False, marks=long), True])
def test_a_file_that_comes_back_is_not_read_twice_in_silence(life: Life, restarts: bool) -> None:
    content = life.file("back.json").read_text()
    path, was_ms = life.folder / "in/back.json", life.now_ms
    life.file("other.json")  # so that one is certainly newer
    life.epoch()
    path.unlink()

    def come_back(at_ms: int) -> None:
        path.write_text(content)
        life.set_time(path, at_ms)
        if restarts:
            life.start()

    go_on(life, days=3, epochs=3 * PARTS)
    come_back(was_ms)  # `cp -p`, a rename back, a listing that is late
    assert poll_now(life.reader).items == 0
    come_back(life.now_ms)  # `cp`, `touch`
    assert poll_now(life.reader).items == 0
    go_on(life, days=6, epochs=3 * PARTS)
    path.unlink()
    go_on(life, days=6, epochs=3 * PARTS)
    come_back(was_ms)  # the days count from when it was gone last
    assert poll_now(life.reader).items == 0
    path.unlink()

    go_on(life, days=20, epochs=5 * PARTS)
    assert life.reader._read.get(str(path)) is None
    come_back(was_ms)
    with pytest.raises(SourceError, match="may have been read before") as told:
        poll_now(life.reader)
    assert told.value.position == str(path) and "touch" in str(told.value)
    path.unlink()
    assert poll_now(life.reader).items == 0, "whoever takes it away may go on"
    # As late, and never read: nobody can tell.
    late = life.file("late.json", age_ms=life.now_ms - was_ms)
    with pytest.raises(SourceError, match="may have been read before"):
        poll_now(life.reader)
    life.set_time(late, life.now_ms)
    life.epoch()
    assert set(life.read.values()) == {1} and life.read["late.json[0"] == 1


def test_a_listing_that_still_shows_a_forgotten_file_ends_no_job(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = life.file("back.json")
    life.epoch()
    shown = life.reader._place.find(str(path))
    assert shown is not None
    path.unlink()
    go_on(life, days=20, epochs=5 * PARTS)
    listing = LocalInput.listing

    def late(place: LocalInput, known: Known = unknown) -> Listing:
        now = listing(place, known)
        return Listing((*now.files, shown), now.subfolders)

    monkeypatch.setattr(LocalInput, "listing", late)
    assert poll_now(life.reader).items == 0


def test_what_no_decided_snapshot_has_is_remembered(life: Life) -> None:
    """Snapshots fail for weeks, and somebody deletes what was read: the next start misses it."""
    life.epoch()
    life.file("lost.json")
    life.epoch(decided=False)
    (life.folder / "in/lost.json").unlink()
    for _ in range(3 * PARTS):
        life.now_ms += DAY_MS
        life.file(f"{life.epoch_id}.json")
        life.epoch(decided=False)
    assert life.reader._read.get(str(life.folder / "in/lost.json")) is not None
    restarted, undecided = life._reader(), UndecidedInput(life.store, "j")
    lost = undecided.check("in", restarted)
    assert [Path(one.shown.split(" ")[0]).name for one in lost] == ["lost.json"]


def test_what_waits_is_never_older_than_what_is_forgotten(life: Life) -> None:
    """A backlog that takes weeks, of files that are years old."""
    for number in range(4 * PARTS):
        life.file(f"{number:04d}.json", age_ms=(1000 - number) * DAY_MS)
    for _ in range(4 * PARTS):
        life.now_ms += DAY_MS
        life.epoch(max_rows=1)
        for name in life.read:
            (life.folder / "in" / name.removesuffix("[0")).unlink(missing_ok=True)
        if life.epoch_id % 50 == 0:
            life.start()
    assert life.reader._read.forgotten is not None
    assert set(life.read.values()) == {1} and len(life.read) == 4 * PARTS


def test_of_files_that_stay_those_beyond_the_horizon_are_passed_over(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path, store, max_file_age="10 days")
    for _ in range(8 * PARTS):
        life.now_ms += DAY_MS // 10
        life.file(f"{life.epoch_id:06d}.json")
        life.epoch()
        if life.epoch_id % 100 == 0:
            life.start()
    assert len(life.reader._read) < 100 + 2 * PARTS
    assert set(life.read.values()) == {1} and len(life.read) == 8 * PARTS
    assert not caplog.records
    life.file("late.json", age_ms=45 * DAY_MS)
    with caplog.at_level(logging.WARNING):
        assert poll_now(life.reader).items == 0
        assert poll_now(life.reader).items == 0
    (told,) = caplog.messages
    assert "1 files are older than max_file_age" in told and "in/late.json" in told
    life.close()
