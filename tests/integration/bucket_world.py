"""A world whose files are in a bucket, whoever serves it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .oracle import Rows
from .world import World


class BucketWorld(World, ABC):
    """The local folder `in` is the oracle's copy of the input, `out` that of the output."""

    @abstractmethod
    def put(self, name: str, body: bytes) -> None:
        """Writes an object, by its path from the world's folder."""

    @abstractmethod
    def download(self, name: str = "out") -> None:
        """Downloads what a reader of the bucket sees in one of the world's folders."""

    def fill(self, files: int = 5, rows: int = 12, *, first: int = 0, seed: int = 1) -> World:
        super().fill(files, rows, first=first, seed=seed)
        for path in sorted((self.folder / "in").rglob("*.json")):
            self.put(str(path.relative_to(self.folder)), path.read_bytes())
        return self

    def committed(self) -> dict[str, Rows]:
        self.download()
        return super().committed()

    def assert_nothing_doubled(self) -> None:
        self.download()
        super().assert_nothing_doubled()
