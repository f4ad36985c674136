"""A file's name survives a crash only once its folder has been synced, whatever the file did."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes the names in a folder durable: call it after creating, renaming or deleting in it.

    Raises:
        OSError: the folder is gone, or the disk failed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Makes a folder, and what it lies in, durable: what is synced in it is found after a crash.

    Raises:
        OSError: it cannot be made.
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
