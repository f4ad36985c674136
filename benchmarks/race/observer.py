"""Watches an output folder beside the engine: which rows were committed when."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.race.committed import Commits, Piece

_SENTINELS = (b'"auction":-1,', b'"auction": -1,')


@dataclass(frozen=True)
class Seen:
    """One look that found something new."""

    at: float
    """Wall-clock seconds."""
    rows: int
    pieces: tuple[Piece, ...]


class Observer:
    """Looks every few milliseconds until `stop`. Files are read only to count lines."""

    def __init__(self, commits: Commits, period_s: float = 0.02) -> None:
        self.seen: list[Seen] = []
        self.rows = 0
        self.has_sentinel = False
        """A row with an id of the sentinels, which come last, was seen."""
        self._commits = commits
        self._period_s = period_s
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def last(self) -> float:
        """Time of the last new row."""
        return self.seen[-1].at if self.seen else 0.0

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def first_after(self, moment: float) -> float | None:
        """Time of the first new row after `moment`."""
        return next((look.at for look in list(self.seen) if look.at > moment and look.rows), None)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._period_s):
                self.look()
        except Exception as failure:  # noqa: BLE001 - handed to whoever asks
            self._failure = failure

    def look(self) -> None:
        pieces = self._commits.new()
        if pieces:
            now = time.time()
            texts = [piece.read() for piece in pieces]
            rows = sum(text.count(b"\n") for text in texts)
            self.has_sentinel |= any(mark in text for text in texts for mark in _SENTINELS)
            self.seen.append(Seen(now, rows, tuple(pieces)))
            self.rows += rows


def write_pieces(seen: list[Seen], folder: Path) -> list[Path]:
    """Each look's new rows as a file of its own: `<place in seen>.json`, for DuckDB."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, look in enumerate(seen):
        path = folder / f"{place:06d}.json"
        with open(path, "wb") as file:
            for piece in look.pieces:
                file.write(piece.read())
        paths.append(path)
    return paths
