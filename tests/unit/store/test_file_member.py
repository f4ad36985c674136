"""A folder as a member: what happens to it from outside."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store import FileMember, member_id_of
from dagster_jet.store.members import lmdb_environment, open_member, writer_gate
from tests.unit.store.forks import in_a_fork


def made(folder: Path) -> FileMember:
    member = FileMember(str(folder))
    member.create()
    return member


@pytest.mark.parametrize("write", [False, True])
def test_a_folder_that_is_deleted_while_in_use_is_noticed(tmp_path: Path, write: bool) -> None:
    member = made(tmp_path / "a")
    member.put_many({b"k": b"v"})
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(StoreUnavailableError, match=f"{tmp_path}/a.*deleted"):
        member.put_many({b"k": b"v2"}) if write else member.get_many([b"k"])
    assert not (tmp_path / "a").exists(), "an empty folder must not take its place"


def test_a_folder_with_a_question_mark_is_found_by_its_id(tmp_path: Path) -> None:
    """Failed before: the id named the folder before the question mark."""
    member = open_member(f"file://{tmp_path}/a%3Fb%23c")
    member.create()
    assert (tmp_path / "a?b#c").is_dir()
    assert member_id_of(member.member_id) == member.member_id
    again = open_member(member.member_id)
    again.ping()
    again.close()
    member.close()


def test_a_folder_that_is_replaced_while_in_use_is_noticed(tmp_path: Path) -> None:
    member = made(tmp_path / "a")
    member.put_many({b"k": b"v"})
    shutil.rmtree(tmp_path / "a")
    fresh = made(tmp_path / "a")
    assert fresh.get_many([b"k"]) == [None]
    with pytest.raises(StoreUnavailableError, match="replaced"):
        member.get_many([b"k"])
    member.close()
    assert fresh.get_many([b"k"]) == [None], "closing the old one leaves the new one open"
    fresh.close()


@pytest.mark.parametrize("in_its_place", ["nothing", "an empty folder", "another member"])
def test_a_folder_that_was_away_is_shared_again(tmp_path: Path, in_its_place: str) -> None:
    """Failed before: who had opened it first stayed locked out until the others had closed it."""
    folder = tmp_path / "a"
    first = made(folder)
    first.put_many({b"k": b"1"})
    folder.rename(tmp_path / "away")
    second = FileMember(str(folder))
    if in_its_place != "nothing":
        folder.mkdir()
        assert second.get_many([b"k"]) == [None]
    if in_its_place == "another member":
        second.create()
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
            first.get_many([b"k"])
    if in_its_place != "nothing":
        shutil.rmtree(folder)
    (tmp_path / "away").rename(folder)
    third = FileMember(str(folder))
    assert first.get_many([b"k"]) == [b"1"]
    first.put_many({b"k": b"2"})
    assert third.get_many([b"k"]) == [b"2"]
    if in_its_place == "another member":
        with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
            second.get_many([b"k"])
    else:
        second.put_many({b"k": b"3"})
        assert first.get_many([b"k"]) == third.get_many([b"k"]) == [b"3"]
    in_a_fork(first.ping)
    second.close()
    third.close()
    first.ping()
    first.close()
    with lmdb.open(str(folder), max_dbs=4) as environment:  # nobody has it open any more
        assert environment.stat()["entries"] == 5


def test_a_deletion_during_a_write_is_noticed(tmp_path: Path) -> None:
    member = made(tmp_path / "a")
    member.ping()

    class Deleting(dict[bytes, bytes]):
        def __getitem__(self, key: bytes) -> bytes:
            shutil.rmtree(tmp_path / "a", ignore_errors=True)
            return super().__getitem__(key)

    with pytest.raises(StoreUnavailableError, match="deleted"):
        member.put_many(Deleting({b"k": b"v"}))


def test_a_place_that_cannot_be_created_is_named_with_a_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    member = FileMember(str(tmp_path / "file" / "a"))
    with pytest.raises(StoreUnwritableError, match=f"{tmp_path}/file/a.*Point the URL"):
        member.ping()


def test_a_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"something else" * 1_000)
    with pytest.raises(StoreUnavailableError, match=str(tmp_path)):
        FileMember(str(tmp_path)).ping()


def test_a_full_disk_is_a_clear_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    script = f"""
import resource, signal, sys
from dagster_jet.errors import StoreUnwritableError
from dagster_jet.store import FileMember
member = FileMember({str(tmp_path / "a")!r})
member.put_many({{b"old": b"kept"}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
try:
    member.put_many({{b"new": bytes(2**22)}})
except StoreUnwritableError as error:
    print(error)
assert member.get_many([b"old", b"new"]) == [b"kept", None]
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert f"file://{tmp_path}/a" in run.stdout


def test_a_map_that_is_too_small_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_environment, "_MAP_SIZES", (2**20,))
    member = FileMember(str(tmp_path))
    member.put_many({b"k": bytes(2**22)})
    assert member.get_many([b"k"]) == [bytes(2**22)]
    member.close()


def test_little_address_space_is_enough(tmp_path: Path) -> None:
    script = f"""
import resource
import dagster_jet.store as store
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
member = store.FileMember({str(tmp_path)!r})
member.put_many({{b"k": b"v"}})
assert member.get_many([b"k"]) == [b"v"]
"""
    assert resource.RLIMIT_AS
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_forked_process_uses_the_folder_at_the_same_time(tmp_path: Path) -> None:
    member = FileMember(str(tmp_path))
    member.put_many({b"k": b"before"})

    def child() -> None:
        assert member.get_many([b"k"]) == [b"before"]
        member.put_many({b"k": b"from the child"})

    in_a_fork(child)
    assert member.get_many([b"k"]) == [b"from the child"]
    member.put_many({b"k": b"after"})
    in_a_fork(lambda: member.close())
    assert member.get_many([b"k"]) == [b"after"]
    member.close()


def test_two_members_of_one_folder_share_it(tmp_path: Path) -> None:
    one, two = FileMember(str(tmp_path)), FileMember(f"{tmp_path}/../{tmp_path.name}/")
    assert one.member_id == two.member_id
    one.put_many({b"k": b"v"})
    one.close()
    assert two.get_many([b"k"]) == [b"v"]
    two.close()
    with lmdb.open(str(tmp_path), max_dbs=2) as environment:  # nobody has it open any more
        assert environment.stat()["entries"] == 4


def test_a_batch_is_there_or_not_after_a_kill(tmp_path: Path) -> None:
    script = f"""
from dagster_jet.store import FileMember
member = FileMember({str(tmp_path)!r})
member.put_many({{b"%03d" % i: b"old" for i in range(100)}})
print("ready", flush=True)
value = 0
while True:
    value += 1
    member.put_many({{b"%03d" % i: b"%d" % value * 1000 for i in range(100)}})
"""
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    member = FileMember(str(tmp_path))
    while member.get_many([b"000"]) == [b"old"]:
        pass
    writer.kill()
    writer.wait()
    writer.stdout.close()
    assert len(set(member.get_many([b"%03d" % i for i in range(100)]))) == 1
    member.put_many({b"000": b"the lock of the dead is free"})
    member.close()


def test_a_writer_that_is_stopped_holds_others_up_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""
import os, signal
from dagster_jet.store import FileMember
member = FileMember({str(tmp_path)!r})

class Stopping(dict):
    def __getitem__(self, key):
        os.kill(os.getpid(), signal.SIGSTOP)  # inside the write transaction
        return super().__getitem__(key)

member.put_many(Stopping({{b"k": b"of the stopped one"}}))
"""
    member = FileMember(str(tmp_path))
    member.put_many({b"k": b"v"})
    monkeypatch.setattr(writer_gate, "WAIT_SECONDS_MAX", 0.3)
    for ends_by in (signal.SIGCONT, signal.SIGKILL):
        writer = subprocess.Popen([sys.executable, "-c", script])
        os.waitpid(writer.pid, os.WUNTRACED)
        before = member.get_many([b"k"])
        begun = time.monotonic()
        with pytest.raises(
            StoreUnavailableError, match=f"{tmp_path} cannot be opened or written: another"
        ):
            member.put_many({b"k": b"w"})
        assert time.monotonic() - begun < 3
        assert member.get_many([b"k"]) == before, "readers need no writer"
        member.close()
        member = FileMember(str(tmp_path))
        with pytest.raises(StoreUnavailableError, match="cannot be opened or written: another"):
            member.get_many([b"k"])  # opening the folder does
        writer.send_signal(ends_by)
        writer.wait()
        assert member.get_many([b"k"]) == (
            [b"of the stopped one"] if ends_by is signal.SIGCONT else before
        )
        member.put_many({b"k": b"v"})
    member.close()


def test_a_forked_child_does_not_keep_the_gate_of_a_killed_parent(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from dagster_jet.store import FileMember
member = FileMember({str(tmp_path)!r})
member.put_many({{b"k": b"v"}})
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)

class Waiting(dict):
    def __getitem__(self, key):
        print("inside", flush=True)
        time.sleep(60)

member.put_many(Waiting({{b"k": b""}}))
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    assert parent.stdout.readline() == b"inside\n"
    parent.kill()
    parent.wait()
    member = FileMember(str(tmp_path))
    begun = time.monotonic()
    member.put_many({b"k": b"w"})
    assert time.monotonic() - begun < 5
    member.close()
    parent.stdin.close()  # the child ends
    parent.stdout.close()


@pytest.mark.parametrize("free", [0, 1])
def test_a_disk_that_fills_in_the_middle_of_a_write_is_called_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """LMDB tells a write that only partly fits as an input/output error."""
    member = made(tmp_path / "a")
    member.put_many({b"k": b"v"})

    def fail(_: object) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free))
    with pytest.raises(StoreUnwritableError, match=r"Input/output error") as refused:
        member._shared.run(fail, write=True)
    assert ("No space left on device" in str(refused.value)) is (free == 0)
    member.close()
