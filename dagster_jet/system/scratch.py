"""Folders for scratch that nobody else can read, prepare or exchange.

Their names can be guessed, and they often lie below a temporary folder that everybody can write:
who makes one of them first would read the rows, or have us map and sort files of his.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dagster_jet.errors import ConfigurationError

OWN_LEVELS = 3
"""A work folder is ``<place>/<namespace and store>/<job>/<execution>``; the place is the user's."""


def make_private(folder: Path, levels: int = OWN_LEVELS) -> None:
    """Make a folder, and what it lies in, for this user alone; do nothing if it is there and his.

    Args:
        folder: which one.
        levels: how many folders of its path are ours; those above are made if they are missing,
            and not looked at.

    Raises:
        ConfigurationError: one of ours belongs to somebody else, or is a link or a file.
        OSError: it cannot be made.
    """
    own = [folder, *folder.parents][:levels]
    own[-1].parent.mkdir(parents=True, exist_ok=True)
    for level in reversed(own):
        try:
            level.mkdir(mode=0o700)
        except FileExistsError:
            _check(level)


def _check(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "no folder"
        raise _refused(folder, f"is {kind}")
    if found.st_uid != os.geteuid():
        raise _refused(folder, f"belongs to the user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & 0o022:  # of an earlier version, under a umask that lets a group write
        folder.chmod(0o700)


def _refused(folder: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"work_dir: {folder} {why}, and whoever made it could read and exchange the state of jobs.",
        cure="Remove it, or give another work_dir.",
    )
