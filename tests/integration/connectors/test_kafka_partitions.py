"""Kafka topics with open transactions, deleted topics, and tombstones."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dagster_jet import Jet, Pipeline, aggregates, sinks, sources, windows
from dagster_jet.connectors.kafka import kafka_reader
from dagster_jet.connectors.kafka.kafka_reader import KafkaReader
from dagster_jet.connectors.trial import forget
from dagster_jet.errors import InputLostError
from dagster_jet.testing import collected
from tests.servers import wait_until

from .kafka_world import KafkaWorld


@pytest.fixture(scope="module")
def kafka() -> KafkaWorld:
    return KafkaWorld()


@pytest.fixture
def jet(tmp_path: Path, spark: Any) -> Iterator[Jet]:
    with Jet(
        store=[f"file://{tmp_path}/store"],
        backup_count=0,
        work_dir=tmp_path / "work",
        show_progress=False,
    ) as jet:
        yield jet


def open_transaction(kafka: KafkaWorld, topic: str, values: list[dict[str, Any]]) -> Producer:
    """Opens another producer's transaction in partition 0."""
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, json.dumps(value), partition=0)
    assert producer.flush(30) == 0
    return producer


# --- behind an open transaction -------------------------------------------------------------------


def test_windows_wait_for_what_is_behind_an_open_transaction(kafka: KafkaWorld, jet: Jet) -> None:
    """A partition that nothing can be read of is idle at once here; but one with rows waiting."""
    forget("undecided")
    topic = kafka.topic(2)
    early = [{"k": "a", "ts": ts} for ts in range(0, 2_000, 100)]
    kafka.send(topic, [{"k": "b", "ts": 100}, {"k": "b", "ts": 9_000}], partition=1)
    p = Pipeline("undecided")
    source = sources.kafka(kafka.servers, topics=[topic], schema="k string, ts long")
    rows = p.read_from(source, name="topic").with_timestamps(
        "ts", allowed_lag="0 ms", idle_timeout="0 ms"
    )
    counts = rows.group_by("k").window(windows.tumbling("1 second"))
    counts.aggregate(n=aggregates.count(), name="counts").write_to(
        sinks.collect("undecided"), name="out"
    )
    hanging = open_transaction(kafka, topic, early[:5])
    kafka.send(topic, early[5:], partition=0)  # committed, and not to be read yet
    jet.run(p)
    assert collected("undecided").num_rows == 0
    hanging.commit_transaction()
    jet.run(p, until="completed")
    found = Counter({row["k"]: 0 for row in [*early]})
    for row in collected("undecided").to_pylist():
        found[row["k"]] += row["n"]
    assert found == {"a": len(early), "b": 2}


def test_what_is_behind_an_open_transaction_is_lag(kafka: KafkaWorld) -> None:
    topic = kafka.topic(2)
    hanging = open_transaction(kafka, topic, [{"v": v} for v in range(3)])
    reader = sources.kafka(kafka.servers, topics=[topic], schema="v long").open("j", "s", None)
    reader.accept(reader.poll())
    assert reader.waiting().items == 0 and reader.plan(10) is None
    assert (
        reader.partitions() == dict(reader.waiting().details) == {f"{topic}/0": 3, f"{topic}/1": 0}
    )
    hanging.abort_transaction()
    wait_until(lambda: looked(reader).waiting().items == 4, within=60)  # and the marker of its end
    assert reader.plan(10) is not None
    assert set(reader.partitions().values()) == {0}


def looked(reader: KafkaReader) -> KafkaReader:
    reader.accept(reader.poll())
    return reader


# --- deleted --------------------------------------------------------------------------------------


@pytest.fixture
def topics(kafka: KafkaWorld, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two that one pattern matches, with 2 and 3 messages; they are looked for in each poll."""
    monkeypatch.setattr(kafka_reader, "LIST_S", 0.0)
    name = f"t-{uuid.uuid4().hex[:12]}"
    pair = f"{name}-a", f"{name}-b"
    for topic, count in zip(pair, (2, 3), strict=True):
        kafka.create(topic)
        kafka.send(topic, [{"v": v} for v in range(count)])
    return pair


def following(kafka: KafkaWorld, topics: tuple[str, str], **options: Any) -> KafkaReader:
    pattern = f"{topics[0][:-2]}-.*"
    source = sources.kafka(kafka.servers, pattern=pattern, schema="v long", **options)
    return source.open("j", "s", None)


def delete(kafka: KafkaWorld, topic: str) -> None:
    kafka.admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in kafka.admin.list_topics(timeout=30).topics, within=60)


def test_a_topic_that_was_read_may_be_deleted(kafka: KafkaWorld, topics: tuple[str, str]) -> None:
    first, second = topics
    reader = looked(following(kafka, topics))
    assert reader.plan(100) is not None
    delete(kafka, first)
    assert looked(reader).plan(100) is None
    assert reader.partitions() == {f"{second}/0": 0}
    # Also in the next execution; and a topic of its name is another one, with other messages.
    again = following(kafka, topics)
    again.restore(json.loads(json.dumps(reader.position())), None)
    assert looked(again).plan(100) is None
    kafka.create(first)
    kafka.send(first, [{"v": 7}])
    wait_until(lambda: looked(again).waiting().items == 1, within=60)
    assert again.position()["offsets"] == {f"{first}/0": 0, f"{second}/0": 3}
    assert "gone" not in again.position()


def test_a_topic_that_is_deleted_with_unread_messages_is_a_loss(
    kafka: KafkaWorld, topics: tuple[str, str]
) -> None:
    first, _ = topics
    strict, lenient = (
        looked(following(kafka, topics, on_data_loss=lost)) for lost in ("fail", "skip")
    )
    delete(kafka, first)
    with pytest.raises(InputLostError, match=f"'{first}/0@0': the topic was deleted: 2 messages"):
        looked(strict)
    assert looked(lenient).take_lost() == 2
    assert lenient.plan(100) is not None and lenient.waiting().items == 0


def test_a_topic_that_is_deleted_while_the_job_is_down_may_be_a_loss(
    kafka: KafkaWorld, topics: tuple[str, str]
) -> None:
    first, _ = topics
    reader = looked(following(kafka, topics))
    reader.plan(100)
    position = reader.position()
    kafka.send(first, [{"v": 9}])
    delete(kafka, first)
    strict, lenient = (following(kafka, topics, on_data_loss=lost) for lost in ("fail", "skip"))
    strict.restore(position, None)
    with pytest.raises(InputLostError, match=f"'{first}/0@2': .* more messages is not known"):
        looked(strict)
    lenient.restore(position, None)
    assert looked(lenient).plan(100) is None


def test_a_topic_that_the_pipeline_reads_no_longer_is_not_lost(
    kafka: KafkaWorld, topics: tuple[str, str]
) -> None:
    first, second = topics
    reader = looked(following(kafka, topics))
    reader.plan(100)
    only = sources.kafka(kafka.servers, topics=[second], schema="v long").open("j", "s", None)
    only.restore(reader.position(), None)
    assert looked(only).plan(100) is None
    assert only.position()["offsets"][f"{first}/0"] == 2, "it is read on when it comes back"


@pytest.mark.parametrize(
    "messages", [1, 3, 5], ids=["it ends before", "as long as it was", "the offset is inside"]
)
def test_a_topic_that_is_made_anew_while_it_is_read_is_another_one(
    kafka: KafkaWorld, topics: tuple[str, str], messages: int
) -> None:
    _, topic = topics
    strict, lenient = (
        looked(
            sources.kafka(kafka.servers, topics=[topic], schema="v long", **more).open(
                "j", "s", None
            )
        )
        for more in ({}, {"on_data_loss": "skip"})
    )
    for reader in (strict, lenient):
        assert reader.plan(100) is not None
    delete(kafka, topic)
    kafka.create(topic)
    kafka.send(topic, [{"v": v} for v in range(messages)])
    with pytest.raises(
        InputLostError, match=rf"'{topic}/0@3': the topic was deleted and recreated"
    ):
        looked(strict)
    assert looked(lenient).waiting().items == messages, "all of it, from its beginning"


# --- without a value ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ({}, [1, 2]),
        ({"tombstones": "skip"}, [1, 2]),
        ({"tombstones": "pass"}, [1, 2, None]),
        ({"format": "raw", "schema": None}, [b'{"v": 1}', b'{"v": 2}', None]),
        ({"format": "raw", "schema": None, "tombstones": "skip"}, [b'{"v": 1}', b'{"v": 2}']),
    ],
    ids=["default", "skip", "pass", "raw", "raw-skip"],
)
def test_a_tombstone_of_a_compacted_topic_does_not_end_the_job(
    kafka: KafkaWorld, jet: Jet, words: dict[str, Any], rows: list[Any]
) -> None:
    forget("compacted")
    topic = kafka.topic(cleanup_policy="compact")
    kafka.send(topic, [{"v": 1}, None, {"v": 2}], key=b"k")
    given = {"schema": "v long", "metadata": True, **words}
    source = sources.kafka(kafka.servers, topics=[topic], **given)
    p = Pipeline("compacted")
    p.read_from(source, name="topic").write_to(sinks.collect("compacted"), name="out")
    jet.run(p)
    found = collected("compacted").to_pylist()
    assert [row["_key"] for row in found] == [b"k"] * len(rows)
    name = "value" if words.get("format") == "raw" else "v"
    assert sorted((row[name] for row in found), key=lambda v: (v is None, v)) == rows
