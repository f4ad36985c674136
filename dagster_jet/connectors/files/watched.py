"""Whether the place of a file is at fault, or the file."""

from __future__ import annotations

from typing import Any, BinaryIO


class Watched:
    """A stream that remembers whether reading it has failed. Then an error is the place's;
    otherwise it is of what was read."""

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
