"""The checksum by which files are known again."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import xxhash

_BLOCK_BYTES = 1 << 20


def file_checksum(path: str | Path) -> int:
    """xxh3 of a file's content, 64 bits. Raises `OSError`."""
    with open(path, "rb") as file:
        return stream_checksum(file)


def stream_checksum(stream: BinaryIO) -> int:
    """The same of what is left in a stream. Raises `OSError`."""
    digest = xxhash.xxh3_64()
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.intdigest()
