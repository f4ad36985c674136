"""Large values of a file member: beside LMDB, and never without it."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from dagster_jet.errors import StoreMismatchError, StoreUnavailableError, StoreUnwritableError
from dagster_jet.store import FileMember
from dagster_jet.store.members.member import Replacement

MIB = 2**20


def values(seed: int, count: int = 4) -> dict[bytes, bytes]:
    """Enough for a segment, and one small value."""
    source = random.Random(seed)
    large = {b"large-%d" % at: source.randbytes(MIB + at) for at in range(count)}
    return {**large, b"small": source.randbytes(10)}


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "segments").iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    return tmp_path / "a"


@pytest.fixture
def member(folder: Path) -> Iterator[FileMember]:
    opened = FileMember(str(folder))
    opened.create()
    yield opened
    opened.close()


def read(member: FileMember, keys: dict[bytes, bytes]) -> dict[bytes, bytes | None]:
    return dict(zip(keys, member.get_many(list(keys)), strict=True))


def test_large_values_of_a_large_batch_have_a_file_of_their_own(
    member: FileMember, folder: Path
) -> None:
    member.put_many(values(1))
    (segment,) = segments(folder)
    assert segment.stat().st_size == sum(MIB + at for at in range(4))
    assert read(member, values(1)) == values(1)
    assert member.list_keys(b"") == sorted(values(1))
    assert member.list_keys(b"large-") == [b"large-%d" % at for at in range(4)]


def test_a_large_value_alone_is_kept_by_lmdb(member: FileMember, folder: Path) -> None:
    member.put_many({b"k": bytes(MIB - 1)})
    assert segments(folder) == []
    assert member.get_many([b"k"]) == [bytes(MIB - 1)]


def test_a_segment_is_deleted_with_the_last_of_its_values(member: FileMember, folder: Path) -> None:
    member.put_many(values(1))
    (first,) = segments(folder)
    member.put_many({b"large-0": b"now small"})
    member.delete_many([b"large-1", b"large-1", b"no such key"])
    member.replace_many({b"large-2": Replacement(values(1)[b"large-2"], b"also small")})
    assert segments(folder) == [first]
    left = {b"large-0": b"now small", b"large-1": None, b"large-2": b"also small"}
    assert read(member, values(1)) == {**values(1), **left}
    member.put_many({**values(2, 5), b"large-3": b"the last"})
    assert first not in segments(folder)
    assert len(segments(folder)) == 1
    assert read(member, values(2, 5)) == {**values(2, 5), b"large-3": b"the last"}
    member.delete_many(list(values(2, 5)))
    assert segments(folder) == []
    assert member.list_keys(b"") == []


def test_what_replaces_is_compared_with_what_is_in_a_segment(
    member: FileMember, folder: Path
) -> None:
    member.put_many(values(1))
    wrong = {key: Replacement(b"something else", value) for key, value in values(2).items()}
    assert member.replace_many(wrong) == 0
    assert len(segments(folder)) == 1, "what was not needed is gone again"
    right = {key: Replacement(values(1)[key], value) for key, value in values(2).items()}
    assert member.replace_many(right) == len(right)
    assert read(member, values(2)) == values(2)
    assert len(segments(folder)) == 1


def test_a_segment_that_was_taken_away_or_cut_off_is_a_damaged_copy(
    member: FileMember, folder: Path
) -> None:
    member.put_many(values(1))
    os.truncate(segments(folder)[0], MIB + 10)
    kept = values(1)
    assert member.get_many(sorted(kept)) == [
        *(kept[b"large-0"], kept[b"large-1"][:10], b"", b"", kept[b"small"])
    ]
    segments(folder)[0].unlink()
    assert member.get_many([b"large-0", b"small"]) == [b"", kept[b"small"]]
    repaired = {b"large-0": Replacement(b"", kept[b"large-0"])}
    assert member.replace_many(repaired) == 1
    assert member.get_many([b"large-0"]) == [kept[b"large-0"]]


STOPS = """
import os, signal, sys
from dagster_jet.store import FileMember
from dagster_jet.store.members import segments

segments.sync_folder = lambda _: os.kill(os.getpid(), signal.SIGSTOP)  # written, without a name
FileMember(sys.argv[1]).put_many({b"k%d" % at: bytes(2**20) for at in range(4)})
"""


def test_what_a_crash_has_left_is_deleted_but_not_what_is_being_written(
    member: FileMember, folder: Path
) -> None:
    member.put_many(values(1))
    for ends_by in (signal.SIGCONT, signal.SIGKILL):
        (good,) = segments(folder)
        writer = subprocess.Popen([sys.executable, "-c", STOPS, str(folder)])
        assert os.WIFSTOPPED(os.waitpid(writer.pid, os.WUNTRACED)[1])
        opened_again(folder)
        assert len(segments(folder)) == 2, "its writer is alive"
        writer.send_signal(ends_by)
        writer.wait()
        opened_again(folder)
        named = [bytes(MIB) if ends_by is signal.SIGCONT else None] * 4
        assert member.get_many([b"k%d" % at for at in range(4)]) == named
        assert (segments(folder) == [good]) is (ends_by is signal.SIGKILL)
        member.delete_many([b"k%d" % at for at in range(4)])
    assert read(member, values(1)) == values(1)


def opened_again(folder: Path) -> None:
    """Opens the member in a process that has not opened it before."""
    script = f"from dagster_jet.store import FileMember; FileMember({str(folder)!r}).ping()"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_batch_is_there_or_not_after_a_kill(member: FileMember, folder: Path) -> None:
    script = f"""
from dagster_jet.store import FileMember
member = FileMember({str(folder)!r})
number = 0
while True:
    number += 1
    member.put_many({{b"k%d" % at: b"%03d" % number * 400_000 for at in range(4)}})
    print(flush=True)
"""
    for batches in (1, 2, 5):
        writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(batches):
            writer.stdout.readline()
        writer.kill()
        writer.wait()
        writer.stdout.close()
        found = member.get_many([b"k%d" % at for at in range(4)])
        assert found[0] is not None
        assert len(found[0]) == 1_200_000
        assert found == found[:1] * 4
        opened_again(folder)
        assert len(segments(folder)) == 1


def test_readers_meet_whole_values_while_others_replace_them(member: FileMember) -> None:
    member.put_many({b"k%d" % at: b"0" * MIB for at in range(4)})
    stop = threading.Event()

    def replace() -> None:
        for number in range(1, 60):
            member.put_many({b"k%d" % at: b"%d" % (number % 10) * MIB for at in range(4)})
        stop.set()

    writer = threading.Thread(target=replace)
    writer.start()
    looks = 0
    while not stop.is_set():
        for found in member.get_many([b"k0", b"k3"]):
            assert found is not None
            assert found == found[:1] * MIB
        looks += 1
    writer.join()
    assert looks


def test_a_disk_that_fills_while_a_segment_is_written_keeps_what_was_there(folder: Path) -> None:
    script = f"""
import os, resource, signal
from dagster_jet.errors import StoreUnwritableError
from dagster_jet.store import FileMember
member = FileMember({str(folder)!r})
member.put_many({{b"old": b"kept"}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
try:
    member.put_many({{b"new-%d" % at: bytes(2**19) for at in range(16)}})
except StoreUnwritableError as error:
    print(error)
assert member.get_many([b"old", b"new-0"]) == [b"kept", None]
assert os.listdir({str(folder / "segments")!r}) == []
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert f"file://{folder} cannot be created or written: [Errno 27] File too large" in run.stdout


@pytest.mark.parametrize("lost", [".", "segments"])
def test_a_folder_that_is_deleted_while_in_use_is_noticed(
    member: FileMember, folder: Path, lost: str
) -> None:
    member.put_many(values(1))
    (folder / lost).rename(folder.parent / "elsewhere")
    with pytest.raises((StoreUnavailableError, StoreUnwritableError), match=f"{folder}"):
        member.put_many(values(2))
    assert not (folder / lost).exists(), "an empty folder must not take its place"


def test_a_place_of_a_newer_version_is_refused(folder: Path) -> None:
    writer = FileMember(str(folder))
    writer.put_many(values(1))
    writer.close()
    with (
        lmdb.open(str(folder), max_dbs=4, map_size=2**36, max_readers=2048) as environment,
        environment.begin(write=True, db=environment.open_db(b"places")) as transaction,
    ):
        packed = transaction.get(b"large-0")
        transaction.put(b"large-0", b"\x02" + packed[1:])
    member = FileMember(str(folder))
    with pytest.raises(StoreMismatchError, match=r"newer version.*Upgrade dagster-jet"):
        member.get_many([b"large-0"])
    assert member.get_many([b"large-1"]) == [values(1)[b"large-1"]]
    member.close()


def test_a_system_that_takes_a_part_at_a_time(
    member: FileMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, value: whole(file, bytes(value[:400_000])))
    member.put_many(values(1, 8))
    assert read(member, values(1, 8)) == values(1, 8)
