"""A file's name survives a crash only once its folder has been synced, whatever the file did."""

from __future__ import annotations

import os


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
