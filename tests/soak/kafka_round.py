"""A round from Kafka to Kafka; the broker is a victim, too. Read by a plain consumer."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from itertools import zip_longest
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ..integration.child import WINDOW_MS
from ..integration.connectors.held_transactions import still_open
from ..integration.connectors.kafka_world import KafkaWorld, is_end_of_transaction
from ..integration.oracle import Rows, windowed
from ..integration.world import random_rows
from ..servers import SharedServer, launch, stop
from ..servers.kafka import prepared
from ..servers.proxy import Proxy
from .kafka_driver import TOPICS
from .late_requests import LateRequests
from .round import FILES_AHEAD, ROWS, Round

_PARTITIONS = 3
_LOOK_S = 0.25


class KafkaRound(Round):
    """Topics in place of folders. What was sent is what the topic has: a producer whose broker dies
    may not know."""

    driver_module = "tests.soak.kafka_driver"
    topics = TOPICS
    _broker: SharedServer | None = None
    _looking: Consumer | None = None
    _seen, _seen_at = 0, 0.0
    _late: LateRequests | None = None

    @property
    def _servers_of_kafka(self) -> str:
        assert self._broker is not None
        return str(self._broker.facts["servers"])

    def _open_store(self) -> None:
        super()._open_store()
        folder = self.folder / "broker"
        folder.mkdir()
        self._broker = launch("kafka", folder, prepared(folder))
        ports = self._broker.facts
        proxy = Proxy(int(ports["late"]), port=int(ports["late_proxy"]))
        self._late = LateRequests(proxy, lambda: is_end_of_transaction, self.setting.seed)
        self._late.start()
        servers = f"127.0.0.1:{proxy.port}"
        (self.folder / "broker.json").write_text(json.dumps({"servers": servers}))
        world = KafkaWorld(self._servers_of_kafka)
        world.create("in", _PARTITIONS)
        for topic in self.topics:
            world.create(topic, 2)
        self._looking = Consumer(
            {"bootstrap.servers": self._servers_of_kafka, "group.id": "looks", "log_level": 0}
        )

    def _feed(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers_of_kafka,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        while not self._fed.wait(0.1):
            if self._files > 2 * self._epochs() + FILES_AHEAD:
                continue
            self._feed_once(producer)
            self._files += 1
        producer.flush(60)

    def _feed_once(self, producer: Producer) -> None:
        for row in random_rows(self._files, ROWS, self.setting.seed):
            place = int(row["k"].removeprefix("key-")) % _PARTITIONS
            producer.produce("in", json.dumps(row), partition=place)
        # In order: no file is there before the one before it.
        while producer.flush(1) and not self._fed.is_set():
            pass

    def _epochs(self) -> int:
        """Number of committed epochs, by the rows in the topic, as far as the broker answers. Two
        threads ask."""
        assert self._looking is not None
        if time.monotonic() < self._seen_at + _LOOK_S:
            return self._seen
        self._seen_at = time.monotonic()
        with suppress(KafkaException):
            ends = [
                self._looking.get_watermark_offsets(TopicPartition("raw", number), timeout=1)[1]
                for number in range(2)
            ]
            self._seen = max(self._seen, sum(ends) // (2 * ROWS))
        return self._seen

    def _kill_server(self, victim: str) -> None:
        assert self._broker is not None
        stop(self._broker, signal.SIGKILL)
        self._count(victim)
        time.sleep(self._rng.uniform(0, 2))
        folder = self.folder / "broker"
        self._broker = launch("kafka", folder, prepared(folder))

    def _end_all(self) -> None:
        super()._end_all()
        if self._late is not None:
            self._late.stop()
        if self._broker is not None:
            stop(self._broker)

    def _judge(self) -> None:
        super()._judge()
        if left := still_open(self._servers_of_kafka):
            self.verdict.broken.append(f"transactions that are still open: {left[:3]}")
        assert self._late is not None
        self.verdict.notes += f"Kafka: {self._late.note()}\n"
        given = _by_key(_AS_TUPLES["raw"](row) for row in self._sent())
        for name, rows in self._in_order().items():
            if wrong := _out_of_order(given, _by_key(rows)):
                self.verdict.wrong[f"{name}, in order"] = f"{wrong} rows are not in their place"

    def _in_order(self) -> dict[str, Iterable[tuple[Any, ...]]]:
        """The outputs whose rows keep the order of each key."""
        return {"raw": [_AS_TUPLES["raw"](row) for row in self._rows_of("raw")]}

    def _sent(self) -> list[dict[str, Any]]:
        """Each key's rows are in one partition."""
        return self._rows_of("in")

    def _rows_of(self, topic: str) -> list[dict[str, Any]]:
        return KafkaWorld(self._servers_of_kafka).rows(topic)

    def _expected(self) -> dict[str, Rows]:
        rows = self._sent()
        per_key = Counter(row["k"] for row in rows)
        return {
            "raw": Counter((row["k"], row["ts"], row["v"]) for row in rows),
            "counts": windowed(rows, WINDOW_MS),
            "numbered": Counter(
                (k, n) for k, total in per_key.items() for n in range(1, total + 1)
            ),
        }

    def _found(self, name: str) -> Rows:
        return Counter(_AS_TUPLES[name](row) for row in self._rows_of(name))


def _by_key(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    of_key: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        of_key[row[0]].append(row)
    return of_key


def _out_of_order(
    given: dict[str, list[tuple[Any, ...]]], found: dict[str, list[tuple[Any, ...]]]
) -> int:
    """Number of rows that are not where they were given."""
    places = (zip_longest(rows, found.get(key, [])) for key, rows in given.items())
    return sum(one != other for key in places for one, other in key)


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def _window(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["k"], _ms(row["window_start"]), _ms(row["window_end"]), row["n"], row["total"]


_AS_TUPLES = {
    "raw": lambda row: (row["k"], row["ts"], row["v"]),
    "counts": _window,
    "numbered": lambda row: (row["k"], row["n"]),
}
