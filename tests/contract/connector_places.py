"""Sinks and sources for the conformance suites, by path: other processes can import this."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

from sqlite_queue import QueueReader, SqliteQueue
from sqlite_table import SqliteTable, TableCommitter
from sqlite_table import _plain as as_sqlite

from dagster_jet.testing.sink_rows import Row

__all__ = [
    "QueueReader",
    "SqliteQueue",
    "SqliteTable",
    "TableCommitter",
    "as_sqlite",
    "locked",
    "read_table",
    "send_messages",
    "table",
]


def table(folder: Path, kind: type[SqliteTable] = SqliteTable) -> SqliteTable:
    with closing(sqlite3.connect(folder / "a.db")) as database:
        database.execute(
            "create table if not exists results (id, text, number, flag, at, day, raw, price)"
        )
    return kind(f"{folder}/a.db", "results", f"{folder}/staged")


def read_table(folder: Path, name: str = "results") -> list[Row]:
    with closing(sqlite3.connect(folder / "a.db")) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(f"select * from {name}")]


def send_messages(folder: Path, rows: list[dict[str, Any]]) -> None:
    with closing(sqlite3.connect(folder / "queue.db")) as queue, queue:
        queue.execute(
            "create table if not exists messages (id text primary key, body text, taken_by text)"
        )
        bodies = [(f"m{row['id']}", json.dumps(row), None) for row in rows]
        queue.executemany("insert into messages values (?, ?, ?)", bodies)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the database as another user of it would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("begin exclusive")
        yield


@contextmanager
def not_mounted(folder: Path) -> Iterator[None]:
    """Puts an empty folder in the place of the folder."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.mkdir()
    yield
    assert not [*folder.iterdir()], "nothing is written before it is known to be the right one"
    folder.rmdir()
    away.rename(folder)
