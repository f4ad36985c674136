"""Rows as large as a cluster takes them, and larger ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from dagster_jet import sinks
from dagster_jet.connectors.kafka import topic_limits
from dagster_jet.connectors.kafka.held_rows import HeldTransaction
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import Reaction, RowsRefusedError, SinkError
from dagster_jet.store import Store, StoreConfig
from tests.long import long

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
    commit(sink, prepared(sink, values, number))


def prepared(sink: Any, values: list[bytes], number: int = 1) -> Any:
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, number, 0, "a"))
    writer.write(pa.record_batch({"__key": [b"k"] * len(values), "__value": values}))
    try:
        return writer.prepare()
    except BaseException:
        writer.abort()
        raise


def commit(sink: Any, artifacts: Any, refused: Any = None) -> None:
    committer = sink.open_committer("j", "out")
    try:
        committer.commit(
            artifacts, CommitContext("j", "out", 1, 1, recovering=True, refused=refused)
        )
    finally:
        committer.close()


def limit(kafka: KafkaWorld, topic: str, size: str) -> None:
    entry = ConfigEntry("max.message.bytes", size, incremental_operation=AlterConfigOpType.SET)
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
    limit(kafka, topic, "4000000")
    epoch(sink, values)
    assert sorted(message.value() for message in kafka.messages(topic)) == sorted(values)


class Letters:
    """Rows that are left out, and what has become of them."""

    may_leave_out, references_will_not_come = True, False

    def __init__(self) -> None:
        self.staged: list[Any] = []
        self.delivered: list[str] = []

    def stage(self, epoch_id: int, rows: Any) -> str:
        self.staged += rows
        return f"memo of {epoch_id}"

    def deliver(self, memo: str) -> None:
        self.delivered.append(memo)


@pytest.mark.parametrize(
    ("found_by", "transactions"),
    [
        ("settings", "held"),
        ("trying in small batches", "roll-forward"),
        pytest.param("settings", "roll-forward", marks=long),
        pytest.param("trying", "held", marks=long),
        pytest.param("trying", "roll-forward", marks=long),
        pytest.param("trying in small batches", "held", marks=long),
    ],
)
def test_decided_messages_that_are_refused_are_left_out(
    kafka: KafkaWorld,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    transactions: Any,
    found_by: str,
) -> None:
    """Those of a held transaction as well, which the broker has given up. Where we may not ask for
    the settings, each is found by trying. The producer keeps what follows a refused batch."""
    if found_by != "settings":
        monkeypatch.setattr(topic_limits, "_settings", lambda cluster, topic: {})
    options = {"batch.num.messages": "2"} if "small" in found_by else {}
    topic = kafka.topic(max_message_bytes="4000000")
    sink = sinks.kafka(
        kafka.servers, topic=topic, transactions=transactions, options=options
    ).with_store(store)
    sink.check("j", "out", is_new_job=True)
    large = {3, 17, 18}
    values = [b"%d" % n + b"x" * (300_000 if n in large else 0) for n in range(24)]
    artifacts = prepared(sink, values)
    if transactions == "held":
        [held] = [HeldTransaction.of(one.token) for one in artifacts]
        committer: Any = sink.open_committer("j", "out")
        owner, ids = committer._owner(held.part), (held.producer_id, held.producer_epoch)
        committer.coordinator.end(owner.transactional_id, *ids, commit=False)
        committer.close()
    limit(kafka, topic, "100000")
    with pytest.raises(RowsRefusedError, match=r"refused_to_dead_letters=True"):
        commit(sink, artifacts)
    assert kafka.messages(topic) == []
    letters = Letters()
    for _ in range(3):
        commit(sink, artifacts, letters)
    found = [message.value() for message in kafka.messages(topic)]
    assert found == [value for n, value in enumerate(values) if n not in large]
    assert [one.raw.encode() for one in letters.staged] == [values[n] for n in sorted(large)]
    assert letters.delivered == ["memo of 1"]


@pytest.mark.parametrize(
    "transactions",
    # In a job there are too many of them in test_kafka_refused.py.
    [pytest.param("roll-forward", marks=long), "held"],
)
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
