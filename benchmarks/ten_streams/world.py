"""The input of the streams, and what they have committed."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.ten_streams.names import name_of

ROWS, KEYS = 200, 10
"""Rows per file, and number of keys."""
WINDOW_MS = 10_000
_Rows: TypeAlias = Counter[tuple[str, int, int, float]]
"""Key, end of the window in ms since 1970, number of events, their total."""


class World(threading.Thread):
    """A folder with input, output and store; writes a small file for each stream in turn.

    An event's time is the time at which its file is written.

    Attributes:
        files: how many were written.
        members: of the store.
    """

    def __init__(self, folder: Path, streams: int, file_every_s: float) -> None:
        super().__init__(daemon=True)
        self.folder, self.streams, self.files = folder, streams, 0
        self.members = [f"file://{folder}/store/{member}" for member in "abc"]
        self._pause_s = file_every_s / streams
        self._done, self._lock = threading.Event(), threading.Lock()
        (folder / "store").mkdir(parents=True)
        for number in range(streams):
            self._input(number).mkdir(parents=True)

    def run(self) -> None:
        while not self._done.wait(self._pause_s):
            self.write(self.files % self.streams)

    def stop(self) -> None:
        self._done.set()
        if self.ident is not None:
            self.join()

    def write(self, stream: int) -> None:
        with self._lock:
            at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            lines = [json.dumps({"k": f"k{n % KEYS}", "at": at, "v": n}) for n in range(ROWS)]
            staged = self.folder / "staged"
            staged.write_text("\n".join(lines) + "\n", encoding="utf-8")
            staged.rename(self._input(stream) / f"{self.files:06d}.json")
            self.files += 1

    def commits(self, stream: int) -> list[float]:
        """Commit time of each epoch with rows, in seconds since 1970."""
        return sorted(path.stat().st_mtime for path in self._markers(stream))

    def last_commit(self, stream: int) -> float:
        return max(self.commits(stream), default=0.0)

    def compared(self) -> dict[str, int]:
        """Committed rows; those among them that the input does not give, or that are there twice.

        `missing` are rows that no stream has committed a minute of event time later.
        """
        counted = Counter[str]()
        for stream in range(self.streams):
            expected, found = self._expected(stream), Counter(self._committed(stream))
            newest = max((end for _, end, *_ in found), default=0)
            counted["committed"] += found.total()
            counted["wrong"] += (found - expected).total()
            counted["missing"] += sum(
                times for row, times in (expected - found).items() if row[1] < newest - 60_000
            )
        return dict(counted)

    def _input(self, stream: int) -> Path:
        return self.folder / "in" / name_of(stream)

    def _markers(self, stream: int) -> list[Path]:
        return list((self.folder / "out" / name_of(stream) / "_epochs").glob("[!.]*.json"))

    def _expected(self, stream: int) -> _Rows:
        counts, totals = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for file in self._input(stream).glob("*.json"):
            for row in _json_lines(file):
                of = row["k"], (_ms(row["at"]) // WINDOW_MS + 1) * WINDOW_MS
                counts[of] += 1
                totals[of] += row["v"]
        return Counter((k, end, n, float(totals[k, end])) for (k, end), n in counts.items())

    def _committed(self, stream: int) -> Iterator[tuple[str, int, int, float]]:
        for marker in self._markers(stream):
            for file in json.loads(marker.read_text(encoding="utf-8"))["files"]:
                for row in _json_lines(self.folder / "out" / name_of(stream) / file["name"]):
                    yield row["k"], _ms(row["window_end"]), row["n"], float(row["total"])


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, file.read_text(encoding="utf-8").splitlines())


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
