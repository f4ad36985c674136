"""The events of a race: NEXMark files, sentinels that close all windows, and the answers.

10,000 events per second of event time, out of order by at most 100 ms, in files of 20,000. The last
files are sentinels: a person, an auction and a bid with ids below 0, an hour later and more. There
are several, so that each reader of an engine gets one. They are a second apart: the watermark
passes the first one (q18 shows it then), but no window in which there is one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.nexmark.generator import with_iso, write_files
from benchmarks.nexmark.oracle import make_views
from benchmarks.race.queries import QUERIES
from dagster_jet.connectors.generated.nexmark.event import event
from dagster_jet.connectors.generated.nexmark.model import AUCTION, BID, PERSON, Model

SENTINELS = 4
HOUR_MS = 3_600_000
LAG_MS = 2_000
_KINDS = (PERSON, AUCTION, BID)


@dataclass(frozen=True)
class Stream:
    """One size of the input, kept in a folder for all engines and later runs."""

    events: int
    per_file: int = 20_000

    @property
    def model(self) -> Model:
        return Model(self.events, events_per_second=10_000, group=1000)

    def folder(self, cache: Path) -> Path:
        return cache / f"stream-{self.events}-{self.per_file}"

    def write(self, cache: Path) -> Path:
        """Writes the files, if they are not there, and returns their folder."""
        folder = self.folder(cache)
        source = folder / "in"
        if not (folder / "done").exists():
            files = range(-(-self.events // self.per_file))
            with ProcessPoolExecutor(2) as pool:
                parts = [files[start : start + 5] for start in range(0, len(files), 5)]
                for part in [pool.submit(self._write_part, source, part) for part in parts]:
                    part.result()
            write_sentinels(self.model, source, len(files))
            (folder / "done").touch()
        return source

    def _write_part(self, source: Path, files: range) -> None:
        write_files(self.model, source, self.per_file, files=files)

    def answer(self, cache: Path, query: str) -> Path:
        """The query's rows, computed once by DuckDB from the files."""
        folder = self.folder(cache)
        answer = folder / f"{query}.parquet"
        if not answer.exists():
            with duckdb.connect() as db:
                open_views(db, folder / "in", self.events)
                db.execute(f"COPY ({QUERIES[query].expected}) TO '{answer}' (FORMAT parquet)")
        return answer


def open_views(db: duckdb.DuckDBPyConnection, source: Path, events: int) -> None:
    """`person`, `auction` and `bid`, without the sentinels."""
    db.execute("SET TimeZone = 'UTC'")
    db.execute("SET threads = 2")
    make_views(db, source)
    db.execute(f"DELETE FROM events WHERE number >= {events}")


def sentinels(model: Model) -> Iterator[str]:
    """The lines of each sentinel file."""
    hour = -(-model.time_ms(model.events) // HOUR_MS) + 1  # a multiple of every window
    for file in range(SENTINELS):
        late = hour * HOUR_MS + file * 1000
        lines = []
        for place, kind in enumerate(_KINDS):
            # Events 0, 1 and 4 are a person, an auction and a bid: their columns are all filled.
            row: dict[str, Any] = event(model, (0, 1, 4)[kind])
            row |= {"number": model.events + file * len(_KINDS) + place, "date_time": late}
            for view, ids in {
                "person": ("id",),
                "auction": ("id", "seller"),
                "bid": ("auction", "bidder", "price"),
            }.items():
                if row[view] is not None:
                    row[view] = {**row[view], **dict.fromkeys(ids, -1)}
            lines.append(json.dumps(with_iso(row)) + "\n")
        yield "".join(lines)


def write_sentinels(model: Model, folder: Path, first_file: int) -> None:
    for number, text in enumerate(sentinels(model), first_file):
        put_file(folder / f"{number:06d}.json", text, model.time_ms(0) // 1000 + number)


def put_file(path: Path, text: str, seconds: int) -> None:
    """The file appears whole, with this modification time."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(text, encoding="utf-8")
    os.utime(hidden, (seconds, seconds))
    hidden.rename(path)


def cut(source: Path, rows: int, per_file: int) -> Iterator[str]:
    """The first `rows` lines of a stream's files, in pieces of `per_file` lines."""

    def lines() -> Iterator[str]:
        for path in sorted(source.glob("*.json")):
            with open(path, encoding="utf-8") as file:
                yield from file

    stream = islice(lines(), rows)
    while piece := list(islice(stream, per_file)):
        yield "".join(piece)
