"""Cost of an epoch's source readers on the driver as a job grows: files that were read before, and
partitions of a topic. Without Spark: a poll that finds ten new files or messages, the epoch's plan,
the position and the journal for the manifest."""

from __future__ import annotations

import json
import os
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.kafka_race.servers import started_broker
from dagster_jet import sources
from dagster_jet.contract import Source, SourceReader

FILES = (100, 1_000, 10_000, 100_000)
PARTITIONS = (1, 10, 100, 1_000)
NEW, EPOCHS = 10, 11
"""New files or messages in each epoch; measured epochs."""


def run(folder: Path, *, quick: bool, console: Console) -> dict[str, Any]:
    """Medians by size: CPU and wall time of an epoch in ms, and bytes of its position."""
    few = 2 if quick else None
    result: dict[str, Any] = {"load": os.getloadavg()[0], "files": {}, "partitions": {}}
    table = Table("", "CPU ms", "wall ms", "bytes of the position")
    for count in FILES[:few]:
        result["files"][count] = one = _files(folder / f"{count}", count)
        table.add_row(f"{count:,} files", *_cells(one))
    with started_broker() as broker:
        for count in PARTITIONS[:few]:
            result["partitions"][count] = one = _partitions(broker.kafka, count)
            table.add_row(f"{count:,} partitions", *_cells(one))
    console.print(table)
    return result


def _files(folder: Path, count: int) -> dict[str, float]:
    folder.mkdir(parents=True)

    def write(numbers: Sequence[int]) -> None:
        for number in numbers:
            (folder / f"{number:08}.json").write_text('{"k": "a"}\n', encoding="utf-8")

    write(range(count))
    source = sources.files(str(folder), format="json", schema="k string")
    return _measured(
        source, lambda epoch: write(range(count + NEW * epoch, count + NEW * (epoch + 1)))
    )


def _partitions(servers: str, count: int) -> dict[str, float]:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topic = f"growth-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, count, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": servers})

    def write(numbers: Sequence[int]) -> None:
        for number in numbers:
            producer.produce(topic, '{"k": "a"}', partition=number % count)
        assert producer.flush(120) == 0

    write(range(count))
    source = sources.kafka(servers, topics=[topic], schema="k string")
    try:
        return _measured(source, lambda epoch: write(range(NEW * epoch, NEW * (epoch + 1))))
    finally:
        admin.delete_topics([topic])[topic].result()


def _measured(source: Source, add: Callable[[int], None]) -> dict[str, float]:
    cpu, wall, size = [], [], 0
    reader = source.open("growth", "in", None)
    try:
        _epoch(reader)  # reads what is there
        for epoch in range(EPOCHS):
            add(epoch)
            began = time.process_time(), time.perf_counter()
            size = _epoch(reader)
            cpu.append(1000 * (time.process_time() - began[0]))
            wall.append(1000 * (time.perf_counter() - began[1]))
    finally:
        reader.close()
    return {
        "cpu_ms": statistics.median(cpu),
        "wall_ms": statistics.median(wall),
        "position_bytes": size,
    }


def _epoch(reader: SourceReader) -> int:
    """One epoch of the reader's; returns the bytes of its position."""
    waited = reader.waiting().items
    until = time.monotonic() + 30
    while waited == reader.waiting().items:
        reader.accept(reader.poll())
        assert time.monotonic() < until, "nothing was found"
    assert reader.plan(1 << 30) is not None
    reader.take_journal()
    return len(json.dumps(reader.position()))


def _cells(one: dict[str, float]) -> tuple[str, ...]:
    return f"{one['cpu_ms']:.1f}", f"{one['wall_ms']:.1f}", f"{one['position_bytes']:,.0f}"
