"""Scratch folders that other users cannot read, prepare or replace.

Their names can be guessed, and they are often below a temporary folder that everybody can write:
another user who creates one first could read the rows, or make us map and sort foreign files.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dagster_jet.errors import ConfigurationError

OWN_LEVELS = 3
"""A work folder is ``<place>/<namespace and store>/<job>/<execution>``; the user sets the place."""


def make_private(folder: Path, levels: int = OWN_LEVELS) -> None:
    """Create a folder and its own parents for this user only; accept them if they are his already.

    Args:
        folder: the folder to create.
        levels: number of trailing path components that are ours; those above are created if they
            are missing, and not checked.

    Raises:
        ConfigurationError: one of ours belongs to another user, or is a link or a file.
        OSError: the folder cannot be created.
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
    if found.st_mode & 0o022:  # made under a umask that allows group writes
        folder.chmod(0o700)


def _refused(folder: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"work_dir: {folder} {why}, and its owner could read and change the state of jobs.",
        cure="Remove it, or give another work_dir.",
    )
