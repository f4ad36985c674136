"""Durable folders: a file's name survives a crash only after its folder has been synced."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable; call it after creating, renaming or deleting files.

    Raises:
        OSError: the folder is missing, or the disk failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably, so that synced files in it survive a crash.

    Raises:
        OSError: the folder cannot be created.
    """
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    except FileNotFoundError:
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
