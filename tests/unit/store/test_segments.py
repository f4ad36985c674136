"""Large values of a file member: beside LMDB, and never without it."""

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import lmdb
import pytest

from dagster_jet.errors import StoreMismatchError, StoreUnavailableError, StoreUnwritableError
from dagster_jet.store import FileMember
from dagster_jet.store.members import file_values, writer_gate
from dagster_jet.store.members.lmdb_environment import LmdbEnvironment
from dagster_jet.store.members.member import Replacement
from dagster_jet.store.members.segments import Place, Segments

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
    keys = sum(2 + len(b"large-0") for _ in range(4))
    assert segment.stat().st_size == sum(MIB + at for at in range(4)) + keys
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
    assert segments(folder) == [first]
    left = {b"large-0": b"now small", b"large-1": None}
    assert read(member, values(1)) == {**values(1), **left}
    member.replace_many({b"large-2": Replacement(values(1)[b"large-2"], b"also small")})
    member.put_many({**values(2, 5), b"large-3": b"the last"})
    assert first not in segments(folder)
    assert len(segments(folder)) == 1
    assert read(member, values(2, 5)) == {**values(2, 5), b"large-3": b"the last"}
    member.delete_many(list(values(2, 5)))
    assert segments(folder) == []
    assert member.list_keys(b"") == []


def test_the_rest_of_a_sparse_segment_is_moved(member: FileMember, folder: Path) -> None:
    member.put_many(values(1))
    member.put_many(values(2, 2))
    second = min(segments(folder), key=os.path.getsize)
    assert len(segments(folder)) == 2
    assert read(member, values(1)) == {**values(1), **values(2, 2)}
    member.delete_many([b"large-2"])
    assert segments(folder) == [second], "a quarter of the first was left"
    assert read(member, values(1)) == {**values(1), **values(2, 2), b"large-2": None}
    member.delete_many([b"large-3"])
    assert member.list_keys(b"large-") == [b"large-0", b"large-1"]


def test_a_large_rest_is_moved_by_several_writes(
    member: FileMember, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_values, "MOVED_BYTES_MAX", 1)
    member.put_many(values(1, 10))
    member.delete_many([b"large-%d" % at for at in range(7)])
    assert len(segments(folder)) == 1, "one value was moved, two are left"
    for _ in range(100):  # looks at a segment by chance
        member.put_many({b"another": b"value"})
    assert segments(folder) == []
    left = {key: value for key, value in values(1, 10).items() if key >= b"large-7"}
    assert read(member, left) == left


def test_values_that_never_change_do_not_keep_the_space_of_those_that_do(
    member: FileMember, folder: Path
) -> None:
    """Failed before: each batch left its whole segment behind."""
    never, size = {}, 20_000
    for number in range(40):
        never[b"never-%d" % number] = b"%d" % (number % 10) * size
        often = {b"often-%d" % at: b"%d" % (number % 10) * size for at in range(60)}
        member.put_many({**often, b"never-%d" % number: never[b"never-%d" % number]})
    assert read(member, {**never, **often}) == {**never, **often}
    alive = (len(never) + len(often)) * size
    used = sum(file.stat().st_blocks * 512 for file in folder.rglob("*"))
    assert used < 3 * alive


def test_a_value_that_is_moved_while_it_is_read_is_found(
    member: FileMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.put_many(values(1))
    read_places = Segments.read

    def moved_first(self: Segments, places: Mapping[bytes, Place]) -> dict[bytes, bytes]:
        monkeypatch.undo()
        member.delete_many([b"large-0", b"large-1", b"large-2"])
        return read_places(self, places)

    monkeypatch.setattr(Segments, "read", moved_first)
    assert member.get_many([b"large-3", b"large-2"]) == [values(1)[b"large-3"], None]


DIES = """
import os, signal, sys
from dagster_jet.store import FileMember
from dagster_jet.store.members.segments import Segments

setattr(Segments, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
FileMember(sys.argv[1]).delete_many([b"large-0", b"large-1", b"large-2"])
"""


@pytest.mark.parametrize(("step", "is_done"), [("read", False), ("delete", True)])
def test_a_kill_while_the_rest_is_moved_loses_nothing(
    member: FileMember, folder: Path, step: str, is_done: bool
) -> None:
    member.put_many(values(1))
    run = subprocess.run([sys.executable, "-c", DIES, str(folder), step], check=False)
    assert run.returncode == -signal.SIGKILL
    deleted = {b"large-%d" % at: None for at in range(3)} if is_done else {}
    assert read(member, values(1)) == {**values(1), **deleted}
    opened_again(folder)
    assert len(segments(folder)) == (0 if is_done else 1)
    assert read(member, values(1)) == {**values(1), **deleted}


def test_a_deletion_succeeds_if_the_disk_has_no_room_for_the_rest(folder: Path) -> None:
    script = f"""
import os, resource, signal
from dagster_jet.store import FileMember
member = FileMember({str(folder)!r})
member.put_many({{b"k%d" % at: b"%d" % at * 2**19 for at in range(4)}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, most))
member.delete_many([b"k0", b"k1", b"k2"])
assert member.get_many([b"k0", b"k3"]) == [None, b"3" * 2**19]
assert len(os.listdir({str(folder / "segments")!r})) == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
for _ in range(100):  # a segment is chosen by chance
    member.put_many({{b"another": b"value"}})
assert member.get_many([b"k0", b"k3"]) == [None, b"3" * 2**19]
assert os.listdir({str(folder / "segments")!r}) == []
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_rest_of_a_damaged_segment_stays_a_damaged_copy(
    member: FileMember, folder: Path
) -> None:
    member.put_many(values(1))
    os.truncate(segments(folder)[0], MIB + 10)
    member.delete_many([b"large-0", b"large-2", b"large-3"])
    assert member.get_many([b"large-1"]) == [values(1)[b"large-1"][:10]]
    assert len(segments(folder)) == 1
    member.put_many({b"large-1": b"repaired"})
    assert segments(folder) == []


def test_a_segment_that_an_older_version_counted_is_kept_until_its_last_value_is_gone(
    folder: Path,
) -> None:
    """It stored the number of values alone."""
    writer = FileMember(str(folder))
    writer.put_many(values(1))
    writer.close()
    with (
        lmdb.open(str(folder), max_dbs=4, map_size=2**36, max_readers=2048) as environment,
        environment.begin(write=True, db=environment.open_db(b"segments")) as transaction,
        transaction.cursor() as cursor,
    ):
        assert cursor.first()
        cursor.put(cursor.key(), cursor.value()[:8])
    member = FileMember(str(folder))
    for at in range(3):
        member.delete_many([b"large-%d" % at])
    assert member.get_many([b"large-2", b"large-3"]) == [None, values(1)[b"large-3"]]
    assert len(segments(folder)) == 1
    member.delete_many([b"large-3"])
    assert segments(folder) == []
    member.close()


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


def test_a_batch_that_waits_in_vain_for_the_writer_leaves_no_segment(
    member: FileMember, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: each attempt left its values on the disk."""
    monkeypatch.setattr(writer_gate, "WAIT_SECONDS_MAX", 0.05)
    member.put_many(values(1))
    kept = segments(folder)
    with (folder / "writer.lock").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # a suspended writer
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match="another process has been writing"):
                member.put_many(values(2))
    assert segments(folder) == kept
    assert read(member, values(1)) == values(1)


def test_a_batch_without_room_for_its_places_leaves_no_segment(
    member: FileMember, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(StoreUnwritableError, match="No space left"):
        patch.setattr(file_values.FileValues, "finish", full)
        member.put_many(values(1))
    assert segments(folder) == []


def test_a_batch_that_fails_after_its_commit_keeps_its_segment(
    member: FileMember, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder seems to be away for the moment after the commit."""
    looks: list[bool] = []
    is_in_place = LmdbEnvironment.is_in_place

    def seems_away(environment: LmdbEnvironment) -> bool:
        looks.append(is_in_place(environment))
        return len(looks) != 3  # before the segment, before the batch, after it

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailableError, match="deleted"):
        patch.setattr(LmdbEnvironment, "is_in_place", seems_away)
        member.put_many(values(1))
    assert len(looks) == 4
    assert len(segments(folder)) == 1
    assert read(member, values(1)) == values(1)


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
