"""The example source of the docs, an acknowledging queue, and the driver that is killed with it."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks

from . import child

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
from sqlite_queue import SqliteQueue

JOB = "queue"


def send(folder: Path, values: Iterable[int]) -> None:
    with closing(sqlite3.connect(folder / "queue.db")) as queue, queue:
        queue.execute(
            "create table if not exists messages (id text primary key, body text, taken_by text)"
        )
        bodies = [(f"m{value}", json.dumps({"v": value}), None) for value in values]
        queue.executemany("insert into messages values (?, ?, ?)", bodies)


def left(folder: Path) -> list[str]:
    """Messages that nobody has acknowledged."""
    with closing(sqlite3.connect(folder / "queue.db")) as queue:
        return [message_id for (message_id,) in queue.execute("select id from messages")]


def queue_pipeline(folder: Path, guarantee: str = "exactly-once") -> Pipeline:
    p = Pipeline(JOB)
    p.read_from(SqliteQueue(f"{folder}/queue.db", "v long"), name="queue").write_to(
        sinks.files(f"{folder}/out", format="json", guarantee=guarantee), name="out"
    )
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, queue_pipeline)
