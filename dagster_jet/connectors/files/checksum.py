"""Checksum that identifies a file's content."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import xxhash

_BLOCK_BYTES = 1 << 20


def file_checksum(path: str | Path) -> int:
    """Returns the 64-bit xxh3 of a file's content. Raises `OSError`."""
    with open(path, "rb") as file:
        return stream_checksum(file)


def stream_checksum(stream: BinaryIO) -> int:
    """Returns the checksum of the rest of a stream. Raises `OSError`."""
    digest = xxhash.xxh3_64()
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.intdigest()
