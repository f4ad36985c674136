"""Seeded Parquet input for the operators: (key, event time, value), one folder per stream.

As `benchmarks.data.Dataset`: out of order by at most 100 ms, a sentinel a day later at the end.
Event times are even numbers of milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.data import DAY_MS, DISORDER_MS, SENTINEL_KEY, T0_MS, set_time

ROWS_PER_FILE = 50_000
_SEED = 20_261_122
_REPEAT_REACH = 1000
"""A repeated row comes so many rows after the original at most."""


@dataclass(frozen=True)
class Streams:
    """Input folders of equal size, `rows` rows in all, `rows_per_ms` each in event time."""

    rows: int
    keys: int
    """Different keys; 0: every row has its own, save for repeated ones."""
    names: tuple[str, ...] = (".",)
    rows_per_ms: int = 10
    repeated: float = 0.0
    """Share of rows that are copies of a row shortly before."""

    @property
    def sources(self) -> int:
        return len(self.names)

    @property
    def rows_per_file(self) -> int:
        return ROWS_PER_FILE

    @property
    def files(self) -> int:
        """Files of each folder."""
        return self.rows // self.sources // ROWS_PER_FILE

    def write(self, folder: Path) -> Path:
        """Writes the files; a folder that is already there is kept."""
        what = (self.rows, self.keys, self.rows_per_ms, self.repeated)
        target = folder / "-".join([*map(str, what), *(n for n in self.names if n != ".")])
        if not (target / "done").exists():
            for number, name in enumerate(self.names):
                self._write_stream(target / "in" / name, np.random.default_rng(_SEED + number))
            (target / "done").touch()
        return target / "in"

    def _write_stream(self, folder: Path, random: np.random.Generator) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        count = self.files * ROWS_PER_FILE
        numbers = np.arange(count)
        keys = random.integers(0, self.keys, count) if self.keys else numbers
        times = T0_MS + numbers // self.rows_per_ms - random.integers(0, DISORDER_MS, count)
        times -= times % 2
        rows = _table(_names(keys), times, random.integers(100, 1000, count))
        if self.repeated:
            back = random.integers(1, _REPEAT_REACH + 1, count)
            is_copy = (random.random(count) < self.repeated) & (numbers >= back)
            rows = rows.take(pa.array(np.where(is_copy, numbers - back, numbers)))
        for number in range(self.files):
            path = folder / f"{number:06d}.parquet"
            pq.write_table(rows.slice(number * ROWS_PER_FILE, ROWS_PER_FILE), path)
            set_time(path, number)
        end = T0_MS + count // self.rows_per_ms + DAY_MS
        last = folder / f"{self.files:06d}.parquet"
        pq.write_table(_table(pa.array([SENTINEL_KEY]), np.array([end]), np.array([100])), last)
        set_time(last, self.files)


def _names(keys: np.ndarray) -> pa.Array:
    return pc.utf8_lpad(pa.array(keys).cast(pa.string()), 9, "0")


def _table(keys: pa.Array, times: np.ndarray, values: np.ndarray) -> pa.Table:
    return pa.table({"k": keys, "ts": times.astype(np.int64), "v": values.astype(np.int64)})
