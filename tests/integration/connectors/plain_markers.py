"""Markers of sinks, as plain clients read them: up to which epoch a place has everything."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

Reader = Callable[[], int]
"""Returns the newest epoch of which a sink has a marker; 0: none."""


@dataclass
class KafkaMarkers:
    """Newest marker of one sink in the topic of markers; reads the topic to its end at every
    call."""

    servers: str
    sink: str
    topic: str = "dagster-jet-markers"
    silence_s: float = 3.0
    """A broker that says nothing for so long is down. More where only the load can delay it."""
    _consumer: Consumer | None = None
    _admin: AdminClient | None = None
    _newest: int = 0
    _read_to: dict[int, int] = field(default_factory=dict)

    def __call__(self) -> int:
        try:
            return self._look()
        except KafkaException:
            # A broker that was killed and is back calls what old clients know of it fenced.
            self._consumer = self._admin = None
            self._read_to = {}
            raise

    def _look(self) -> int:
        if self._consumer is None:
            self._consumer = self._opened()
            self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        consumer = self._consumer
        if not self._read_to:
            found = consumer.list_topics(timeout=self.silence_s).topics.get(self.topic)
            if found is None or not found.partitions:
                return 0
            self._read_to = dict.fromkeys(found.partitions, 0)
            consumer.assign([TopicPartition(self.topic, number, 0) for number in self._read_to])
        ends = self._ends()
        until = time.monotonic() + self.silence_s
        while any(self._read_to[number] < end for number, end in ends.items()):
            if time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            if (message := consumer.poll(0.2)) is not None:
                self._take(message)
        return self._newest

    def _ends(self) -> dict[int, int]:
        """End of each partition that may be read now: up to its first open transaction."""
        assert self._admin is not None
        asked = {TopicPartition(self.topic, n): OffsetSpec.latest() for n in self._read_to}
        told = self._admin.list_offsets(
            asked,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self.silence_s,
        )
        return {place.partition: future.result().offset for place, future in told.items()}

    def _take(self, message: Any) -> None:
        if message.error() is None:
            self._read_to[message.partition()] = message.offset() + 1
            if json.loads(message.key())[3] == self.sink:
                self._newest = max(self._newest, json.loads(message.value())["epoch"])
        elif message.error().code() == KafkaError._PARTITION_EOF:
            self._read_to[message.partition()] = message.offset()

    def _opened(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )


@dataclass(frozen=True)
class TableMarkers:
    """Newest marker of one sink in its database, for both kinds of transactions."""

    url: str
    sink: str

    def __call__(self) -> int:
        newest = 0
        with psycopg.connect(self.url, connect_timeout=10) as connection:
            for table, committed in (
                ("dagster_jet_epochs", "true"),
                ("dagster_jet_held", "is_committed"),
            ):
                [(exists,)] = connection.execute("select to_regclass(%s)", [table]).fetchall()
                if exists is not None:
                    [(epoch,)] = connection.execute(
                        f"select max(epoch) from {table} where sink = %s and {committed}",
                        [self.sink],
                    ).fetchall()
                    newest = max(newest, int(epoch or 0))
        return newest


@dataclass(frozen=True)
class FileMarkers:
    """Newest marker of a folder of output."""

    out: Path

    def __call__(self) -> int:
        names = (self.out / "_epochs").glob("[!.]*.json")
        return max((int(path.stem) for path in names), default=0)
