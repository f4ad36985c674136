"""Folders for scratch: made for one user, refused where somebody else was first."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.errors import ConfigurationError
from dagster_jet.system.scratch import make_held, make_private, remove_private, remove_unheld


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Folder with the rights of a temporary one: everybody may write there."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    return place


def test_what_is_made_is_for_its_owner_alone(place: Path) -> None:
    """Failed before: rows lay in folders that everybody could read."""
    before = os.umask(0)
    try:
        for _ in range(2):
            make_private(place / "jet-store" / "job" / "7")
    finally:
        os.umask(before)
    made = [place / "jet-store", place / "jet-store/job", place / "jet-store/job/7"]
    assert list(map(mode, made)) == [0o700] * 3
    assert mode(place) == 0o1777


def test_a_folder_that_others_may_write_to_is_closed(place: Path) -> None:
    (place / "jet-store").mkdir()
    (place / "jet-store").chmod(0o775)
    make_private(place / "jet-store" / "job" / "7")
    assert mode(place / "jet-store") == 0o700


@pytest.mark.parametrize("level", ["jet-store", "jet-store/job", "jet-store/job/7"])
def test_what_somebody_else_made_is_refused(
    place: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: a name that can be guessed, made first by another user, was used as it was."""
    (place / level).mkdir(parents=True)
    theirs, lstat = place / level, Path.lstat

    def as_another_users(path: Path) -> Any:
        found = lstat(path)
        if path != theirs:
            return found
        return os.stat_result([*found[:4], os.geteuid() + 1, *found[5:]])

    monkeypatch.setattr(Path, "lstat", as_another_users)
    with pytest.raises(ConfigurationError, match=r"belongs to the user .*another work_dir"):
        make_private(place / "jet-store" / "job" / "7")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_or_a_file_in_the_way_is_refused(place: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    if kind == "link":
        (place / "jet-store").symlink_to(target)
    else:
        (place / "jet-store").touch()
    with pytest.raises(ConfigurationError, match=r"work_dir: .* is (a link|no folder)"):
        make_private(place / "jet-store" / "job" / "7")
    assert not list(target.iterdir())


def test_empty_parents_go_with_the_last_folder_also_while_another_is_made(place: Path) -> None:
    """Failed before: an empty folder stayed for every job."""
    first, second = (place / "jet-store" / "job" / number for number in "12")
    end = threading.Event()

    def come_and_go() -> None:
        while not end.is_set():
            make_private(first)
            remove_private(first)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(500):
            make_private(second)
            assert second.is_dir()
            remove_private(second)
    finally:
        end.set()
        other.join()
    assert not list(place.iterdir())
    with pytest.raises(FileNotFoundError):
        make_private(Path("/proc/jet-store"), levels=1)  # no folder can be made there


# --- held folders ---------------------------------------------------------------------------------


def test_a_folder_is_held_until_the_last_process_with_its_descriptor_is_dead(place: Path) -> None:
    folder, descriptor = make_held(place)
    (folder / "rows").write_text("rows")
    waits = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(waits, stdin=subprocess.PIPE, pass_fds=[descriptor])
    try:
        remove_unheld(place)
        os.close(descriptor)
        remove_unheld(place)
        assert (folder / "rows").read_text() == "rows"
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    remove_unheld(place)
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("host", "mount", "age_s", "is_removed"),
    [
        ("same", "same", 0, True),
        ("same", "other", 10**9, True),
        ("same", "other", 0, False),
        ("other", "same", 0, True),
        ("", "", 10**9, False),
    ],
)
def test_a_lock_says_nothing_of_another_hosts_folder(
    place: Path, host: str, mount: str, age_s: int, is_removed: bool
) -> None:
    folder, descriptor = make_held(place)
    os.close(descriptor)
    parts = folder.name.split("-")
    ours = [host == "same", mount == "same"]
    parts[:2] = [part if own else "0ther" for part, own in zip(parts, ours, strict=False)]
    folder = folder.rename(place / "-".join(parts))
    os.utime(folder, 2 * (time.time() - age_s,))
    remove_unheld(place)
    assert folder.exists() is not is_removed


def test_a_file_system_without_locks_keeps_all_folders(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.EBADF, "NFS locks no folder")

    monkeypatch.setattr(fcntl, "flock", refused)
    folder, descriptor = make_held(place)
    os.close(descriptor)
    remove_unheld(place)
    assert folder.exists()


def test_files_links_and_folders_of_others_stay(place: Path, tmp_path: Path) -> None:
    folder, descriptor = make_held(place)
    os.close(descriptor)
    target = tmp_path / "elsewhere"
    folder.rename(target)
    folder.symlink_to(target)
    others = [place / "another-users-folder", place / folder.with_suffix(".log")]
    others[0].mkdir()
    others[1].touch()
    remove_unheld(place)
    assert target.exists() and folder.is_symlink() and all(other.exists() for other in others)
