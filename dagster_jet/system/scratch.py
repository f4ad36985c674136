"""Scratch folders that other users cannot read, prepare or replace.

Their names can be guessed, and they are often below a temporary folder that everybody can write:
another user who creates one first could read the rows, or make us map and sort foreign files.

A held folder belongs to running processes. They share a lock on it, which the kernel releases when
the last of them ends, however it ends. So a later process can tell that nobody uses it: process ids
say less, because every container has a process 1. systemd-tmpfiles spares a locked folder, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dagster_jet.errors import ConfigurationError
from dagster_jet.system.process import boot_id

OWN_LEVELS = 3
"""A work folder is ``<place>/<namespace and store>/<job>/<execution>``; the user sets the place."""
_FRESH = "new-"
_TRIES = 100


def make_private(folder: Path, levels: int = OWN_LEVELS, setting: str = "work_dir") -> None:
    """Create a folder and its own parents for this user only; accept them if they are his already.

    Args:
        folder: the folder to create.
        levels: number of trailing path components that are ours; those above are created if they
            are missing, and not checked.
        setting: what says where the folder is, for errors.

    Raises:
        ConfigurationError: one of ours belongs to another user, or is a link or a file.
        OSError: the folder cannot be created.
    """
    own = [folder, *folder.parents][:levels]
    for tries_left in reversed(range(_TRIES)):
        own[-1].parent.mkdir(parents=True, exist_ok=True)
        try:
            for level in reversed(own):
                _make(level, setting)
            return
        except FileNotFoundError:  # `remove_private` has removed an empty parent meanwhile
            if not tries_left:
                raise


def remove_private(folder: Path, levels: int = OWN_LEVELS) -> None:
    """Remove a folder of `make_private`, and its own parents if they are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are in it
        for level in folder.parents[: levels - 1]:
            level.rmdir()


def make_held(place: Path) -> tuple[Path, int]:
    """Create a folder in `place` that is held while a process has the returned descriptor open.

    A child that inherits the descriptor (`pass_fds`) holds the folder as well. A folder that cannot
    be locked, as in a file system without locks, is never removed by `remove_unheld`.
    """
    fresh = Path(tempfile.mkdtemp(prefix=_FRESH, dir=place))
    descriptor = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return fresh, descriptor
    own = fresh.name.removeprefix(_FRESH)
    # Only with this name it is one that `remove_unheld` looks at.
    return fresh.rename(place / f"{_host()}-{_mount(place)}-{own}"), descriptor


def remove_unheld(place: Path) -> None:
    """Remove the folders of `make_held` in `place` that nobody holds any more.

    Other hosts may share `place`, and a file system need not show them our locks. So only folders
    are removed that were made on this mount of it since this kernel was booted, and those that this
    host made before.
    """
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    own_host, own_mount = _host(), _mount(place) if boot_id() else None
    for folder in place.glob("*-*-*"):
        host, mount, _ = folder.name.split("-", 2)
        with suppress(OSError):  # removed meanwhile
            is_before = host == own_host and folder.lstat().st_mtime < booted_at
            if mount == own_mount or is_before:
                _remove_unheld(folder)


def _remove_unheld(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # gone meanwhile, or no folder
    try:
        with suppress(OSError):  # it is held
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _host() -> str:
    return _short(socket.gethostname())


def _mount(place: Path) -> str:
    """Names this boot of the kernel, whose containers share it, and this mount of a file system."""
    return _short(f"{boot_id()} {place.stat().st_dev}")


def _short(name: str) -> str:
    """Paths of sockets have a bound, and host names may be long."""
    return hashlib.sha256(name.encode()).hexdigest()[:6]


def _make(folder: Path, setting: str) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        _check(folder, setting)


def _check(folder: Path, setting: str) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise _refused(folder, setting, f"is {kind}")
    if found.st_uid != os.geteuid():
        why = f"belongs to the user {found.st_uid}, not to {os.geteuid()}"
        raise _refused(folder, setting, why)
    if found.st_mode & 0o022:  # made under a umask that allows group writes
        folder.chmod(0o700)


def _refused(folder: Path, setting: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{setting}: {folder} {why}, and its owner could read and change the state of jobs.",
        cure=f"Remove it, or give another {setting}.",
    )
