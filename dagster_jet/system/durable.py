"""Durable folders: a file's name survives a crash only after its folder has been synced."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable; call it after creating, renaming or deleting files.

    Raises:
        OSError: the folder is missing, or the disk failed.
    """
    _sync(folder, os.O_DIRECTORY)


def sync_file(file: str | os.PathLike[str]) -> None:
    """Make the contents of a file durable that others have written.

    Raises:
        OSError: the file is missing, or the disk failed.
    """
    _sync(file)


def _sync(path: str | os.PathLike[str], flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
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
