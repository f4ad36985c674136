"""A queue in an SQLite file as a source: messages are acknowledged once a snapshot has them.

create table messages (id text primary key, body text, taken_by text)
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet import Reaction
from dagster_jet.connector_kit import ReadMessages
from dagster_jet.contract import Acknowledges, BadRowRule, Lag, Source, SourceFrame, SourceReader


@dataclass(frozen=True)
class SqliteQueue(Source):
    """What users write; `schema` is of the messages' JSON bodies, as DDL."""

    path: str
    schema: str

    def row_schema(self) -> str:
        return self.schema

    def describe(self) -> dict[str, str]:
        return {"kind": "sqlite_queue", "path": self.path}

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> QueueReader:
        return QueueReader(self)


@dataclass
class QueueReader(SourceReader):
    """The consumer of one execution. The queue delivers to it what it has not acknowledged, also
    what an earlier consumer has taken and left."""

    acknowledges = Acknowledges.MESSAGES

    source: SqliteQueue
    consumer: str = field(default_factory=lambda: uuid.uuid4().hex)
    read: ReadMessages = field(default_factory=ReadMessages)
    _waiting: dict[str, str] = field(default_factory=dict)
    _connection: sqlite3.Connection | None = None

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self.read.restore(position["remembered"])

    # --- on the source's own thread: all that talks to the queue ---

    def poll(self) -> list[tuple[str, str]]:
        with self._connected() as queue:
            queue.execute("begin immediate")
            rows = queue.execute(
                "select id, body from messages where taken_by is not ?", (self.consumer,)
            ).fetchall()
            taken = [(self.consumer, message_id) for message_id, _ in rows]
            queue.executemany("update messages set taken_by = ? where id = ?", taken)
        return rows

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        with self._connected() as queue:
            queue.execute("begin immediate")  # one for all: each by itself would wait for the disk
            ids = [(message_id,) for message_id in messages]
            queue.executemany("delete from messages where id = ?", ids)
        self.read.acknowledged(messages)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def reaction(self, error: Exception) -> Reaction:
        """The file is locked, or cannot be opened now: it is tried again."""
        return Reaction.RETRY if isinstance(error, sqlite3.OperationalError) else Reaction.FAIL

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            uri = f"file:{self.source.path}?mode=rw"
            self._connection = sqlite3.connect(uri, timeout=1, uri=True, isolation_level=None)
        return self._connection

    # --- on the execution's threads ---

    def accept(self, found: list[tuple[str, str]]) -> None:
        new = {i: body for i, body in found if self.read.deliver(i, self.consumer)}
        self._waiting.update(new)

    def waiting(self) -> Lag:
        return Lag(len(self._waiting), {"messages": len(self._waiting)})

    def plan(self, max_rows: int) -> dict[str, str] | None:
        taken = dict(list(self._waiting.items())[:max_rows])
        for message_id in taken:
            del self._waiting[message_id]
        self.read.handed_out(dict.fromkeys(taken, self.consumer))
        return taken or None

    def frame(self, spark: Any, split: dict[str, str]) -> SourceFrame:
        from pyspark.sql import functions as F

        bodies = spark.createDataFrame([(body,) for body in split.values()], "body string")
        parsed = F.from_json("body", self.source.schema, {"mode": "FAILFAST"})
        return SourceFrame(bodies.select(parsed.alias("row")).select("row.*"))

    def position(self) -> dict[str, Any]:
        return {"remembered": self.read.remembered()}

    def unacknowledged(self) -> dict[str, Any]:
        return self.read.unacknowledged()

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        self.read.restore_unacknowledged(messages)
