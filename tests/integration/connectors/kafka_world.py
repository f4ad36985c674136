"""Topics of the run's broker, written and read by plain clients."""

from __future__ import annotations

import base64
import json
import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dagster_jet.connectors.kafka import (
    held_rows,
    markers,
    offsets,
    transaction_coordinator,
    transactions,
)
from tests.servers import wait_until
from tests.servers.kafka import kafka
from tests.servers.proxy import Proxy


class KafkaWorld:
    """A broker; topics get names that no other test has."""

    def __init__(self, servers: str | None = None) -> None:
        self.servers = servers or kafka()
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.create(name, partitions, **config)
        return name

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result()
        wait_until(lambda: self.has(name, partitions), within=60)

    def has(self, name: str, partitions: int) -> bool:
        """Brokers hear of it a little later than the one that has made it."""
        topic = self.admin.list_topics(timeout=30).topics.get(name)
        return topic is not None and len(topic.partitions) == partitions

    @contextmanager
    def made_anew(self, topic: str, partitions: int, **config: str) -> Iterator[None]:
        """A compacted topic has not one of its messages."""
        had = self.messages(topic)
        self.admin.delete_topics([topic])[topic].result()
        wait_until(lambda: topic not in self.admin.list_topics(timeout=30).topics, within=60)
        self.create(topic, partitions, **config)
        yield
        producer = Producer({"bootstrap.servers": self.servers})
        for message in had:
            producer.produce(topic, message.value(), message.key(), partition=message.partition())
        assert producer.flush(30) == 0

    def send(
        self,
        topic: str,
        values: Iterable[Mapping[str, Any] | bytes | str | None],
        partition: int | None = None,
        **more: Any,
    ) -> None:
        producer = Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 5, "message.max.bytes": 4_000_000}
        )
        for number, value in enumerate(values):
            data = json.dumps(value) if isinstance(value, Mapping) else value
            place = {} if partition is None else {"partition": partition}
            keys = {} if "key" in more else {"key": f"{number}"}
            producer.produce(topic, data, **place, **keys, **more)
            producer.poll(0)
        assert producer.flush(30) == 0

    def send_in_transaction(self, topic: str, values: Sequence[Any], *, commit: bool) -> None:
        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": uuid.uuid4().hex}
        )
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, json.dumps(value), partition=0)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()

    def rows(self, topic: str, *, committed: bool = True) -> list[dict[str, Any]]:
        """All there is, as a plain consumer reads it."""
        return [json.loads(message.value()) for message in self.messages(topic, committed)]

    def rows_and_partitions(self, topic: str) -> list[dict[str, Any]]:
        """The same, each with its partition; those of one partition in their order."""
        return [
            {**json.loads(m.value()), "_partition": m.partition()} for m in self.messages(topic)
        ]

    def messages(self, topic: str, committed: bool = True) -> list[Any]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
            }
        )
        partitions = consumer.list_topics(topic).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found, open_ = [], set(partitions)
        while open_:
            message = consumer.poll(5)
            assert message is not None, "the broker is silent"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                open_.discard(message.partition())
        consumer.close()
        return found


@contextmanager
def another_topic(topics: list[str], anew: str) -> Iterator[None]:
    """A sink's last topic is another one, as if it had been made anew."""
    topics.append(anew)
    yield
    topics.pop()


def as_json(row: Mapping[str, Any]) -> str:
    """As other programs write values: decimals as numbers, times in UTC, bytes as base64."""
    text = json.dumps({name: _plain(value) for name, value in row.items()})
    return re.sub(rf'"{_NUMBER}([^"]*)"', r"\1", text)


_NUMBER = "number:"


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case Decimal():
            return f"{_NUMBER}{value:f}"
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
    return value


@contextmanager
def away(proxy: Proxy) -> Iterator[None]:
    """A cut network."""
    with impatient(), proxy.cut():
        yield


@contextmanager
def silent(proxy: Proxy) -> Iterator[None]:
    """A cluster that takes connections, and does not answer."""
    with impatient(), proxy.silent():
        yield


@contextmanager
def committed_unheard(proxy: Proxy) -> Iterator[None]:
    """A network that is cut when a transaction has ended, before the answer is here."""
    with impatient():
        proxy.cut_answer_to(is_end_of_transaction)
        try:
            yield
        finally:
            proxy.restore()


def is_end_of_transaction(request: bytes) -> bool:
    """EndTxn: its number is behind the length of what is sent."""
    return request[4:6] == (26).to_bytes(2, "big")


@contextmanager
def impatient() -> Iterator[None]:
    """Shortens the time-outs for the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "SILENCE_S", 1.0)
        patch.setattr(transactions, "CALL_S", 0.5)
        patch.setattr(held_rows, "SILENCE_S", 1.0)
        patch.setattr(markers, "_SILENCE_S", 1.0)
        patch.setattr(transaction_coordinator, "_SILENCE_S", 1.0)
        patch.setattr(transaction_coordinator, "_CONNECTING_S", 1.0)
        patch.setattr(offsets, "CALL_S", 1.0)
        yield
