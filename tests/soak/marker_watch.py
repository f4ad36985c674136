"""Looks, while processes are killed, whether any sink is ahead of what the job has decided.

What a sink has is read first, the record second, which only ever moves on: a marker that is beyond
the record then was written before its decision.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from dagster_jet import Jet, JetError

from .driver import JOB

SINKS = ("to_kafka", "to_table", "to_parquet")
_MARKER_TOPIC = "dagster-jet-markers"


class MarkerWatch:
    """Reads markers by plain clients, on a thread of its own."""

    def __init__(self, members: Sequence[str], servers: str, url: str, out: Path) -> None:
        self._members, self._servers, self._url, self._out = members, servers, url, out
        self.looked: Counter[str] = Counter()
        """By sink, how often a marker was compared."""
        self.ahead: list[str] = []
        self._newest_message = 0
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, name="marker watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)

    def _watch(self) -> None:
        consumer = self._consumer()
        readers: dict[str, Callable[[], int]] = {
            "to_kafka": lambda: self._of_kafka(consumer),
            "to_table": self._of_table,
            "to_parquet": self._of_parquet,
        }
        with Jet(store=list(self._members)) as jet:
            while not self._over.wait(0.05):
                for sink, read in readers.items():
                    # A server that is killed does not answer; the next look is soon.
                    with suppress(KafkaException, psycopg.Error, JetError):
                        self._compare(sink, read(), jet)
        consumer.close()

    def _compare(self, sink: str, epoch: int, jet: Jet) -> None:
        if epoch == 0:
            return
        record = jet.record(JOB)
        decided = 0 if record is None or record.snapshot is None else record.snapshot.epoch_id
        self.looked[sink] += 1
        if epoch > decided:
            self.ahead.append(f"{sink} has epoch {epoch}, the record {decided}")

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )

    def _of_kafka(self, consumer: Consumer) -> int:
        if not consumer.assignment():
            found = consumer.list_topics(timeout=2).topics.get(_MARKER_TOPIC)
            if found is None or not found.partitions:
                return 0
            consumer.assign(
                [TopicPartition(_MARKER_TOPIC, number, 0) for number in found.partitions]
            )
        while (message := consumer.poll(0.05)) is not None:
            if message.error() is None and json.loads(message.key())[3] == "to_kafka":
                self._newest_message = max(
                    self._newest_message, json.loads(message.value())["epoch"]
                )
        return self._newest_message

    def _of_table(self) -> int:
        with psycopg.connect(self._url, connect_timeout=2) as connection:
            [(table,)] = connection.execute("select to_regclass('dagster_jet_epochs')").fetchall()
            if table is None:
                return 0
            [(epoch,)] = connection.execute("select max(epoch) from dagster_jet_epochs").fetchall()
            return int(epoch or 0)

    def _of_parquet(self) -> int:
        names = (self._out / "_epochs").glob("[!.]*.json")
        return max((int(path.stem) for path in names), default=0)
