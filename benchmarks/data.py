"""Seeded input: JSON lines of (key, event time, value), out of order by at most 100 ms.

Every line has the same number of bytes, so that "rows per epoch" is exact for engines that plan by
file or by size. The last file holds one row a day later, which closes all windows before it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

SCHEMA = "k string, ts long, v long"
T0_MS = 1_700_000_000_000
DISORDER_MS = 100
WINDOW_MS = 10_000
SENTINEL_KEY = "key-close"
_SEED = 20_261_121
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Dataset:
    """Content of a folder of input files. `rows_per_ms` is the number of rows per ms of event
    time."""

    files: int
    rows_per_file: int
    rows_per_ms: int
    keys: int = 1000
    sources: ClassVar[int] = 1

    @property
    def rows(self) -> int:
        return self.files * self.rows_per_file

    def write(self, folder: Path) -> Path:
        """Writes the files, in order of modification time too; an existing folder is kept."""
        target = folder / f"{self.files}x{self.rows_per_file}-{self.rows_per_ms}-{self.keys}"
        if (target / "done").exists():
            return target / "in"
        (target / "in").mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(_SEED)
        for number in range(self.files):
            first = number * self.rows_per_file
            self._write_file(target / "in" / f"{number:06d}.json", number, first, random)
        end = T0_MS + self.rows // self.rows_per_ms + DAY_MS
        last = target / "in" / f"{self.files:06d}.json"
        last.write_text(line(SENTINEL_KEY, end, 100), encoding="ascii")
        set_time(last, self.files)
        (target / "done").touch()
        return target / "in"

    def _write_file(self, path: Path, number: int, first: int, random: np.random.Generator) -> None:
        size = self.rows_per_file
        times = T0_MS + (first + np.arange(size)) // self.rows_per_ms
        times -= random.integers(0, DISORDER_MS + 1, size)
        keys = random.integers(0, self.keys, size)
        values = random.integers(100, 1000, size)
        rows = zip(keys.tolist(), times.tolist(), values.tolist(), strict=True)
        path.write_text("".join([line(f"{k:09d}", t, v) for k, t, v in rows]), encoding="ascii")
        set_time(path, number)


def line(key: str, time_ms: int, value: int) -> str:
    return f'{{"k":"{key}","ts":{time_ms},"v":{value}}}\n'


def set_time(path: Path, number: int) -> None:
    seconds = T0_MS // 1000 + number
    os.utime(path, (seconds, seconds))
