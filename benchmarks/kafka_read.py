"""Messages of a topic into Arrow, as our tasks read them, against a bare consumer that drops them.

Both are librdkafka, on one core's thread of Python beside its own; what differs is what we do with
every message: its offset is looked at, its value copied into a column.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from benchmarks.ratios import ratio
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.offsets import Partition
from dagster_jet.connectors.kafka.ranges import Range
from dagster_jet.connectors.kafka.read_task import BATCH, ReadTask
from dagster_jet.connectors.task_shares import FixedShares


def run(servers: str, *, messages: int, rounds: int, console: Console) -> dict[str, Any]:
    """Rounds of both, in turns; the first of either warms up."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    try:
        _fill(servers, topic, messages)
        measured: dict[str, list[list[float]]] = {"ours": [], "bare": []}
        cpu: dict[str, list[list[float]]] = {"ours": [], "bare": []}
        readers = {"ours": _ours, "bare": _bare}
        for number in range(rounds + 1):
            for name in list(readers) if number % 2 else reversed(readers):
                rate, spent = _measure(readers[name], servers, topic, messages)
                if number:
                    measured[name].append([rate])
                    cpu[name].append([spent])
                    console.print(f"{name}: {rate:,.0f} messages/s, {spent:.2f} CPU-s per million")
    finally:
        admin.delete_topics([topic])[topic].result()
    rates = ratio(measured["ours"], measured["bare"])
    per_cpu = ratio(cpu["bare"], cpu["ours"])
    console.print(f"ours : bare, messages/s {rates}, messages per CPU-second {per_cpu}")
    return {"messages/s": str(rates), "per CPU-second": str(per_cpu), "rates": measured, "cpu": cpu}


def _fill(servers: str, topic: str, messages: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50})
    for number in range(messages):
        value = json.dumps({"k": f"key-{number % 1000}", "ts": number, "v": number % 97})
        while True:
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(120) == 0


def _measure(
    reader: Callable[[str, str, int], int], servers: str, topic: str, messages: int
) -> tuple[float, float]:
    me = psutil.Process()
    begun, before = time.perf_counter(), sum(me.cpu_times()[:2])
    assert reader(servers, topic, messages) == messages
    spent = sum(me.cpu_times()[:2]) - before
    return messages / (time.perf_counter() - begun), spent * 1e6 / messages


def _ours(servers: str, topic: str, messages: int) -> int:
    ranges = (Range(Partition(topic, 0), 0, messages),)
    task = ReadTask(
        Cluster(servers), FixedShares((ranges,)), (ranges[0].partition.name,), "s", (), False
    )
    return sum(batch.num_rows for batch in task._read(ranges))


def _bare(servers: str, topic: str, messages: int) -> int:
    settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while found < messages:
        found += len(consumer.consume(min(BATCH, messages - found), 0.1))
    consumer.close()
    return found
