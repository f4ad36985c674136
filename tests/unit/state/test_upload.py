"""State that is saved beside its task: how the driver hears of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_jet.errors import StoreUnwritableError
from dagster_jet.snapshot.manifest import Ack, ChunkSet, Saving
from dagster_jet.state.upload import await_saved, save_beside
from dagster_jet.system.process import start_ticks

SET = ChunkSet("hourly/000000000007-1-0-a0", 1, 2, 3, 4)
NEVER = threading.Event()
ACK = Ack("hourly", 0, "a0", rows_in=1)


def test_the_ack_waits_for_what_is_being_saved(tmp_path: Path) -> None:
    disks_are_slow, go_on = threading.Event(), threading.Event()

    def save() -> tuple[ChunkSet | None, int]:
        disks_are_slow.set()
        assert go_on.wait(30)
        return SET, 2

    ack = replace(ACK, saving=save_beside(save, tmp_path / "told.json"))
    ack = Ack.from_bytes(ack.to_bytes())
    assert disks_are_slow.wait(30), "saved although nobody waits yet"
    threading.Timer(0.1, go_on.set).start()
    assert await_saved(ack, NEVER) == replace(ACK, chunk_set=SET, chain_dropped=2)
    assert list(tmp_path.iterdir()) == []


def test_nothing_had_changed(tmp_path: Path) -> None:
    ack = replace(ACK, saving=save_beside(lambda: (None, 0), tmp_path / "told.json"))
    assert await_saved(ack, NEVER) == ACK


@pytest.mark.parametrize(
    "failure", [StoreUnwritableError("the disk is full."), ValueError(), SystemExit("a panic")]
)
def test_what_goes_wrong_is_told(tmp_path: Path, failure: BaseException) -> None:
    def save() -> tuple[ChunkSet | None, int]:
        raise failure

    ack = await_saved(replace(ACK, saving=save_beside(save, tmp_path / "told.json")), NEVER)
    assert ack == replace(ACK, snapshot_error=str(failure) or "ValueError")


def test_the_process_that_saves_is_killed(tmp_path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ack = replace(ACK, saving=Saving(str(tmp_path / "told.json"), worker.pid))
    threading.Timer(0.2, worker.kill).start()
    threading.Thread(target=worker.wait, daemon=True).start()  # as Spark's daemon reaps its workers
    told = await_saved(ack, NEVER)
    assert told.saving is None and "gone" in str(told.snapshot_error)


def test_a_zombie_saves_nothing(tmp_path: Path) -> None:
    """The daemon died too, and process 1 of a container reaps nobody."""
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    saving = Saving(str(tmp_path / "told.json"), worker.pid, start_ticks(worker.pid) or 0)
    threading.Timer(0.2, worker.kill).start()
    assert "gone" in str(await_saved(replace(ACK, saving=saving), NEVER).snapshot_error)
    worker.wait()


def test_another_process_that_got_its_pid_saves_nothing(tmp_path: Path) -> None:
    path, pid = str(tmp_path / "told.json"), os.getpid()
    other = Saving(path, pid, (start_ticks(pid) or 0) + 1)
    assert "gone" in str(await_saved(replace(ACK, saving=other), NEVER).snapshot_error)


def test_somebody_deletes_the_folder_for_what_is_told(tmp_path: Path) -> None:
    """Cleaners of temporary folders do. The worker cannot say anything then, and lives."""
    folder = tmp_path / "saving"
    folder.mkdir()
    saving = Saving(str(folder / "told.json"), os.getpid(), start_ticks(os.getpid()) or 0)
    threading.Timer(0.1, folder.rmdir).start()
    told = str(await_saved(replace(ACK, saving=saving), NEVER).snapshot_error)
    assert str(folder) in told and told.endswith("is gone")


def test_nobody_waits_any_more(tmp_path: Path) -> None:
    """The execution is over and its folder gone: saving neither fails nor makes it anew."""
    saved = threading.Event()

    def save() -> tuple[ChunkSet | None, int]:
        saved.set()
        return SET, 0

    save_beside(save, tmp_path / "gone" / "told.json")
    save_beside(lambda: (SET, 0), tmp_path / "after.json")
    assert saved.wait(30)
    assert await_saved(
        replace(ACK, saving=Saving(str(tmp_path / "after.json"), 1)), NEVER
    ).chunk_set
    assert not (tmp_path / "gone").exists()


def test_the_execution_ends_and_does_not_wait(tmp_path: Path) -> None:
    go_on, over = threading.Event(), threading.Event()

    def save() -> tuple[ChunkSet | None, int]:
        assert go_on.wait(30)
        return SET, 0

    ack = replace(ACK, saving=save_beside(save, tmp_path / "told.json"))
    over.set()
    assert await_saved(ack, over) == replace(ACK, snapshot_error="the execution has ended")
    go_on.set()


def test_there_is_no_room_to_say_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    ack = replace(ACK, saving=save_beside(lambda: (SET, 0), tmp_path / "told.json"))
    error = str(await_saved(ack, NEVER).snapshot_error)
    assert error.endswith(f"could not be written to {tmp_path}: No space left on device")
    assert list(tmp_path.iterdir()) == []
