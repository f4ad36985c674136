"""A real query's checkpoint, and a real group's offsets, as the observing component reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.errors import SourceUnavailableError
from dagster_jet.orchestration.outside.consumer_group import ConsumerGroup
from dagster_jet.orchestration.outside.kafka_lag import kafka_lag
from dagster_jet.orchestration.outside.streaming_query import Checkpoint
from tests.long import long
from tests.servers.members import free_port

from .kafka_world import KafkaWorld

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_query_of_structured_streaming(spark: SparkSession, tmp_path: Path) -> None:
    """Written by Spark: two epochs with rows, and one that fails in its sink."""
    checkpoint = Checkpoint.at(f"file://{tmp_path}/checkpoint", {}, None)
    (tmp_path / "in").mkdir()

    def run(number: int, fails: bool = False) -> None:
        row = {"at": f"2026-11-27T10:0{number}:00Z", "k": "a"}
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps(row), encoding="utf-8")
        rows = spark.readStream.schema("at timestamp, k string").json(str(tmp_path / "in"))

        def sink(frame: DataFrame, epoch: int) -> None:
            if fails:
                raise RuntimeError("the sink is away")
            frame.collect()

        query = (
            rows.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["k"])
            .writeStream.foreachBatch(sink).trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        query.awaitTermination()

    run(1)
    first = checkpoint.read()
    run(2)
    reading = checkpoint.read()
    assert int(reading.position) > int(first.position)
    assert reading.state == f"after epoch {reading.position}" and not reading.is_idle
    ten_past_two = 1_795_773_720_000
    assert first.watermark_ms == ten_past_two - 70_000
    assert reading.watermark_ms == ten_past_two - 10_000, "the one after the last epoch"
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    assert reading.committed_at_ms == newest.stat().st_mtime_ns // 1_000_000
    assert reading.details["sources"] == ['{"logOffset": 1}'] and reading.lag is None
    with pytest.raises(Exception, match="the sink is away"):
        run(3, fails=True)
    failed = checkpoint.read()
    assert (failed.position, failed.watermark_ms) == (reading.position, reading.watermark_ms)
    assert failed.state == f"in epoch {int(reading.position) + 1}", "begun, and not committed"


def test_a_consumer_group() -> None:
    world = KafkaWorld()
    topic, group = world.topic(), "g-" + world.topic()
    cluster = Cluster.of(world.servers, None)
    observed = ConsumerGroup(cluster, group)
    assert not observed.read().is_up, "a group that has never committed"
    world.send(topic, [{"n": n} for n in range(10)], partition=0)
    consumer = Consumer(
        {"bootstrap.servers": world.servers, "group.id": group, "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    read = consumer.consume(4, timeout=60)
    assert len(read) == 4
    consumer.commit(message=read[-1], asynchronous=False)
    reading = observed.read()
    assert reading.lag == 6 and reading.state == "stable with 1 members" and not reading.is_idle
    assert reading.details["offsets"] == {topic: 4}
    consumer.commit(message=consumer.consume(6, timeout=60)[-1], asynchronous=False)
    caught_up = observed.read()
    assert caught_up.lag == 0 and caught_up.is_idle and caught_up.position != reading.position
    consumer.close()
    world.send(topic, [{"n": 10}], partition=0)
    gone = observed.read()
    assert gone.lag == 1 and gone.state == "empty with 0 members" and not gone.is_idle
    assert kafka_lag(cluster, {(topic, 0): 3}) == 8, "as a checkpoint of Spark has them"


@long  # 5 s of waiting
def test_brokers_that_are_away_are_named() -> None:
    observed = ConsumerGroup(Cluster.of(f"127.0.0.1:{free_port()}", None), "billing")
    with pytest.raises(
        SourceUnavailableError, match=r"Kafka cluster at 127\.0\.0\.1:\d+: .*refused"
    ):
        observed.read()
