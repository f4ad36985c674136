"""Distinguishes errors of a file's place from errors of its content."""

from __future__ import annotations

from typing import Any, BinaryIO


class Watched:
    """A stream that records whether a read has failed. If so, an error is the place's; otherwise it
    is caused by the content."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.has_failed = False

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except OSError:
            self.has_failed = True
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
