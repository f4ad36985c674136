"""`sinks.foreach_epoch` with functions of three kinds, and the driver that is killed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_jet import Pipeline, sinks, sources

from . import child

SCHEMA = "k string, ts long, v long"
COLUMNS = ("k", "ts", "v")


class Load:
    """Rows and id in one transaction; nothing for an id that is there: exactly-once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "loaded.db"

    def __call__(self, rows: pa.Table, epoch: str) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("create table if not exists loaded (id text primary key)")
            database.execute("create table if not exists rows (k text, ts bigint, v bigint)")
            if database.execute("insert or ignore into loaded values (?)", [epoch]).rowcount:
                values = [tuple(row[name] for name in COLUMNS) for row in rows.to_pylist()]
                database.executemany("insert into rows values (?, ?, ?)", values)


class Replace:
    """A folder per id, of which the second call replaces the first's: exactly-once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "replaced"

    def __call__(self, rows: Any, epoch: str) -> None:
        rows.write.mode("overwrite").json(f"{self.folder}/{epoch}")


class Append:
    """A line per call, whatever the id is: at-least-once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "appended.json"

    def __call__(self, rows: pa.Table, epoch: str) -> None:
        values = sorted(tuple(row[name] for name in COLUMNS) for row in rows.to_pylist())
        with self.path.open("a") as lines:
            lines.write(json.dumps([epoch, values]) + "\n")


def loading(folder: Path) -> Pipeline:
    p = Pipeline("loading")
    source = sources.files(f"{folder}/in/left", format="json", schema=SCHEMA)
    rows = p.read_from(source, name="rows")
    rows.write_to(sinks.foreach_epoch(Load(folder), rows_as="arrow"), name="loaded")
    rows.write_to(sinks.foreach_epoch(Replace(folder)), name="replaced")
    rows.write_to(sinks.foreach_epoch(Append(folder), rows_as="arrow"), name="appended")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, loading)
