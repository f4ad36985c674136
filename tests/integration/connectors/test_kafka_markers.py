"""The topic of markers, which all jobs share: who waits for whom, and how much of it is read."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from dagster_jet import sinks
from dagster_jet.connectors.kafka import marker_topic, markers
from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.markers import PARTITIONS, Marker, MarkerReader, Owner
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import ConfigurationError, SinkError
from dagster_jet.store import Store, StoreConfig
from tests.long import long
from tests.servers import wait_until

from .kafka_world import KafkaWorld


@pytest.fixture(scope="module")
def kafka() -> KafkaWorld:
    return KafkaWorld()


@pytest.fixture
def topic(kafka: KafkaWorld) -> str:
    """Topic made as a start makes it."""
    name = f"m-{uuid.uuid4().hex[:12]}"
    marker_topic.check_marker_topic(Cluster(kafka.servers), name, "j", "out")
    return name


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        yield store


def test_a_new_client_gets_the_ends_at_once(kafka: KafkaWorld, topic: str) -> None:
    """Failed before: one start of ten waited for 3 s."""
    began = []
    for _ in range(40):
        began.append(time.monotonic())
        Administration(Cluster(kafka.servers)).ends(topic, [3])
    began.append(time.monotonic())
    assert max(after - before for before, after in pairwise(began)) < 2.9


def test_a_dead_job_keeps_no_other_from_starting(kafka: KafkaWorld, topic: str, store: Store):
    """The dead job's transaction is open for as long as the broker waits for its producer."""
    home = (store.store_id, store.config.namespace)
    dead = Owner(*home, "dead", "out")
    job = next(j for j in "abc" if Owner(*home, j, "out").partition != dead.partition)
    producer = Producer(
        {"bootstrap.servers": kafka.servers, "transactional.id": dead.transactional_id}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, Marker(1, 0, 1).value(), dead.key(1), partition=dead.partition)
    assert producer.flush(30) == 0
    to = kafka.topic()
    sink = sinks.kafka(kafka.servers, topic=to, marker_topic=topic).with_store(store)
    began = time.monotonic()
    sink.check(job, "out", is_new_job=True)
    writer = sink.open_writer(TransactionId(job, "out", 1, 1, 1, 0, "a0"))
    writer.write(pa.record_batch({"__key": [b"k"], "__value": [b'{"v": 1}']}))
    committer = sink.open_committer(job, "out")
    committer.commit(writer.prepare(), CommitContext(job, "out", 1, 1, recovering=False))
    committer.close()
    assert kafka.rows(to) == [{"v": 1}] and time.monotonic() - began < markers._SILENCE_S
    producer.abort_transaction()


def test_a_topic_that_was_created_again_while_a_job_runs_is_missed(
    kafka: KafkaWorld, topic: str, store: Store
) -> None:
    """As on a cluster that came back empty. The start would find the newest marker alone."""
    to, context = kafka.topic(), CommitContext("j", "out", 1, 1, recovering=False)
    sink = sinks.kafka(kafka.servers, topic=to, marker_topic=topic).with_store(store)
    sink.check("j", "out", is_new_job=True)

    def staged(epoch: int) -> Any:
        writer = sink.open_writer(TransactionId("j", "out", 1, 1, epoch, 0, "a0"))
        writer.write(pa.record_batch({"__key": [b"k"], "__value": [b'{"v": %d}' % epoch]}))
        return writer.prepare()

    committer: Any = sink.open_committer("j", "out")
    epochs = [staged(n) for n in (1, 2, 3)]
    for epoch in epochs[:2]:
        committer.commit(epoch, context)
    committer.producer.open()  # has read the second marker
    kafka.admin.delete_topics([topic])[topic].result()
    wait_until(lambda: not kafka.has(topic, PARTITIONS), within=60)
    marker_topic.check_marker_topic(Cluster(kafka.servers), topic, "j", "out")
    committer.producer.give_up()
    for _ in range(2):
        with pytest.raises(SinkError, match="ends at 0, and was read up to"):
            committer.commit(epochs[2], context)
    committer.close()
    assert kafka.rows(to) == [{"v": 1}, {"v": 2}]
    starting = sink.open_committer("j", "out")
    assert not starting.has_committed(epochs[1], replace(context, execution_id=2, owns_job=True))
    starting.close()


def test_a_marker_is_read_once(
    kafka: KafkaWorld, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer looks for newer markers before each of its transactions."""
    owner = Owner("store", "n", "j", "out")
    seen: list[int] = []

    def noted(cluster: Cluster, place: markers.Place) -> Iterator[Any]:
        for message in messages(cluster, place):
            seen.append(message.offset())
            yield message

    messages = markers._messages
    monkeypatch.setattr(markers, "_messages", noted)
    reader = MarkerReader(Cluster(kafka.servers), topic, owner)
    for epoch in (1, 2, 3):
        send(kafka, topic, owner, [epoch])
        assert reader.newest() == {1: Marker(epoch, 0, 1)}
        assert reader.newest() == {1: Marker(epoch, 0, 1)}
    assert len(seen) == len(set(seen)) == 3


def test_a_topic_with_too_few_partitions_is_refused(kafka: KafkaWorld) -> None:
    few = kafka.topic(PARTITIONS - 1, cleanup_policy="compact")
    with pytest.raises(ConfigurationError, match=f"has {PARTITIONS - 1} partitions"):
        marker_topic.check_marker_topic(Cluster(kafka.servers), few, "j", "out")


@long
def test_what_a_start_reads_does_not_grow(kafka: KafkaWorld, topic: str) -> None:
    """Time spans are a 2000th of the real ones: a segment is new for 0.3 s."""
    faster = [
        ConfigEntry(name, str(int(value) // 2000), incremental_operation=AlterConfigOpType.SET)
        for name, value in marker_topic.SETTINGS.items()
        if name.endswith(".ms")
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=faster)
    kafka.admin.incremental_alter_configs([resource])[resource].result(30)
    owner, epochs = Owner("store", "n", "j", "out"), 20_000

    def read() -> int:
        partition = markers.Place(topic, owner.partition, 0, 0)
        return sum(1 for _ in markers._messages(Cluster(kafka.servers), partition))

    send(kafka, topic, owner, range(epochs))
    assert read() == epochs

    def is_small() -> bool:
        """A segment is closed by what comes after its time."""
        send(kafka, topic, owner, [epochs])
        return read() < 100

    wait_until(is_small, within=120)
    assert MarkerReader(Cluster(kafka.servers), topic, owner).newest() == {1: Marker(epochs, 0, 1)}


def send(kafka: KafkaWorld, topic: str, owner: Owner, epochs: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 5})
    for epoch in epochs:
        value = Marker(epoch, 0, 1).value()
        producer.produce(topic, value, owner.key(1), partition=owner.partition)
        producer.poll(0)
    assert producer.flush(60) == 0
