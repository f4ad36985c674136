"""The checksum by which files are known again."""

from __future__ import annotations

from pathlib import Path

import xxhash

_BLOCK_BYTES = 1 << 20


def file_checksum(path: str | Path) -> int:
    """xxh3 of a file's content, 64 bits. Raises `OSError`."""
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.intdigest()
