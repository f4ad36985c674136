"""Rows as large as a cluster takes them, and larger ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from dagster_jet import sinks
from dagster_jet.connectors.contract import CommitContext, TransactionId
from dagster_jet.errors import Reaction, SinkError
from dagster_jet.store import Store, StoreConfig

from .kafka_world import KafkaWorld

MODES = pytest.mark.parametrize("transactions", ["roll-forward", "held"])
LARGE = 1_500_000


@pytest.fixture(scope="module")
def kafka() -> KafkaWorld:
    return KafkaWorld()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        yield store


def epoch(sink: Any, values: list[bytes], number: int = 1) -> None:
    """One, prepared and committed."""
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, number, 0, "a"))
    writer.write(pa.record_batch({"__key": [b"k"] * len(values), "__value": values}))
    try:
        artifacts = writer.prepare()
    except BaseException:
        writer.abort()
        raise
    commit(sink, artifacts)


def commit(sink: Any, artifacts: Any) -> None:
    committer = sink.open_committer("j", "out")
    try:
        committer.commit(artifacts, CommitContext("j", "out", 1, 1, recovering=False))
    finally:
        committer.close()


def raise_limit(kafka: KafkaWorld, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", "4000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([resource])[resource].result()


@MODES
def test_a_message_that_is_too_large_is_told_and_written_once_it_may_be(
    kafka: KafkaWorld, store: Store, transactions: Any
) -> None:
    topic = kafka.topic()  # 1 MB, as Kafka comes
    sink = sinks.kafka(kafka.servers, topic=topic, transactions=transactions).with_store(store)
    sink.check("j", "out", is_new_job=True)
    values = [b"small", b"x" * LARGE, b"small"]
    with pytest.raises(SinkError, match=r"is larger than max\.message\.bytes of the topic") as told:
        epoch(sink, values)
    assert told.value.reaction is Reaction.FAIL and topic in str(told.value)
    assert kafka.messages(topic) == []
    raise_limit(kafka, topic)
    epoch(sink, values)
    assert sorted(message.value() for message in kafka.messages(topic)) == sorted(values)


@MODES
def test_many_rows_of_a_topic_that_takes_small_batches(
    kafka: KafkaWorld, store: Store, transactions: Any
) -> None:
    """The library does not divide a batch that is refused: it is told not to make it."""
    topic = kafka.topic(max_message_bytes="50000")
    values = [b"%d" % n + b"x" * 1000 for n in range(500)]
    made: Any = {}
    for options in ({}, {"batch.size": "40000"}):
        made = sinks.kafka(kafka.servers, topic=topic, transactions=transactions, options=options)
        sink = made.with_store(store)
        sink.check("j", "out", is_new_job=False)
        if not options:
            with pytest.raises(SinkError, match=r'options=\{"batch.size": "100000"\}'):
                epoch(sink, values)
            assert kafka.messages(topic) == []
        else:
            epoch(sink, values)
    assert sorted(message.value() for message in kafka.messages(topic)) == sorted(values)
