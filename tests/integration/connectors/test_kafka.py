"""Kafka for real: the contracts, wherever the driver dies, and what a cluster may do meanwhile."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import Jet, JobConfig, Pipeline, Secret, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.kafka_reader import KafkaReader
from dagster_jet.connectors.kafka.markers import PARTITIONS, Marker, Owner
from dagster_jet.connectors.kafka.producing import EpochProducer
from dagster_jet.connectors.trial import forget
from dagster_jet.contract import CommitContext
from dagster_jet.errors import (
    ArtifactLostError,
    BadRowError,
    ConfigurationError,
    InputLostError,
    OutputLostError,
    PipelineError,
    ResultError,
    SourceError,
)
from dagster_jet.execution.events import (
    ExecutionRestarting,
    ItemsLost,
    SnapshotCommitted,
    SourceUnavailable,
)
from dagster_jet.store import Store, StoreConfig
from dagster_jet.testing import check_sink, check_source, collected
from dagster_jet.testing.typed_rows import Typed
from tests.long import long
from tests.servers import SharedServer, launch, stop, wait_until
from tests.servers.kafka import PASSWORD, network, prepared

from ..world import World
from . import given_up_child
from .held_transactions import transaction_states
from .kafka_job import KafkaPipelineWorld
from .kafka_world import KafkaWorld, another_topic, as_json, away, committed_unheard, silent


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


def read(jet: Jet, source: Any, **options: Any) -> list[dict[str, Any]]:
    """Returns the rows of one drained run."""
    forget("kafka")
    p = Pipeline("reads")
    p.read_from(source, name="topic").write_to(sinks.collect("kafka"), name="out")
    jet.run(p, **options)
    return collected("kafka").to_pylist()


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(row["v"] for row in rows)


# --- the contracts --------------------------------------------------------------------------------


@pytest.fixture
def options(spark: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """With a password, which a listener without SASL does not ask for."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    monkeypatch.setitem(spark.sparkContext.environment, "KAFKA_PASSWORD", PASSWORD)
    return {
        "sasl.username": "me",
        "sasl.password": Secret(env="KAFKA_PASSWORD"),
        "reconnect.backoff.max.ms": "500",
    }


WHOLE = pytest.mark.parametrize(
    "whole", [pytest.param(False, id="short"), pytest.param(True, marks=long, id="whole")]
)
"""All clauses. `make test` leaves out outages and steps that other tests there have: a connection
is cut in test_kafka_outage.py, one falls silent in test_kafka_late.py, and drivers die around a
commit in test_kafka_topics.py, test_kafka_refused.py and test_order.py."""


@WHOLE
def test_the_contract_of_a_source(
    kafka: KafkaWorld, spark: Any, options: dict[str, Any], whole: bool
):
    topic, of_types = kafka.topic(2, max_message_bytes="4000000"), kafka.topic(2)
    with network("contracts") as proxy:

        def source(topic: str, schema: str) -> Any:
            servers = f"127.0.0.1:{proxy.port}"
            return sources.kafka(servers, topics=[topic], schema=schema, options=options)

        check_source(
            partial(source, topic, "id long, text string"),
            partial(kafka.send, topic),
            spark,
            outages={"a connection that is cut": partial(away, proxy)}
            | ({"a cluster that is silent": partial(silent, proxy)} if whole else {}),
            secrets=[PASSWORD],
            typed=Typed(partial(source, of_types), lambda r: kafka.send(of_types, map(as_json, r))),
        )


@WHOLE
def test_the_contract_of_a_sink(
    kafka: KafkaWorld, spark: Any, tmp_path: Path, options: dict[str, Any], whole: bool
):
    topic, anew = (kafka.topic(2, max_message_bytes="4000000") for _ in range(2))
    topics = [topic]
    markers = kafka.topic(PARTITIONS, cleanup_policy="compact")
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store, network("contracts") as proxy:
        servers = f"127.0.0.1:{proxy.port}"

        def make() -> Any:
            sink = sinks.kafka(
                servers, topic=topics[-1], key="id", marker_topic=markers, options=options
            )
            return sink.with_store(store)

        outages: dict[str, Any] = {"an answer that is lost": partial(committed_unheard, proxy)}
        steps = ["kafka.commit.produced"]
        set_back: dict[str, Any] = {
            "a topic that was made anew, while the markers stay": partial(
                another_topic, topics, anew
            )
        }
        if whole:
            outages |= {
                "a connection that is cut": partial(away, proxy),
                "a cluster that is silent": partial(silent, proxy),
            }
            steps += ["kafka.commit.before", "kafka.commit.after"]
            steps += ["staging.put.before", "staging.finished"]
            set_back["a marker topic that was made anew"] = partial(
                kafka.made_anew, markers, PARTITIONS, cleanup_policy="compact"
            )
        check_sink(
            make,
            lambda: kafka.rows_and_partitions(topic),
            spark=spark,
            log_of=itemgetter("_partition"),
            outages=outages,
            secrets=[PASSWORD],
            refused=[{"text": "x" * 4_100_000}],
            steps=steps,
            set_back=set_back,
        )


# --- producers that are given up ------------------------------------------------------------------


def test_a_producer_that_is_given_up_gives_its_transaction_up(kafka: KafkaWorld):
    """The next producer does not keep readers of the topic waiting."""
    topic, markers = kafka.topic(), kafka.topic(PARTITIONS, cleanup_policy="compact")
    store, name = uuid.uuid4().hex, "out"
    producer = EpochProducer(Cluster(kafka.servers), topic, markers, Owner(store, "n", "j", name))

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"__key": [b"k"], "__value": [b'{"v": 1}']})
        assert producer.client.flush(30) == 0
        assert transaction_states(kafka, store) == {name: "Ongoing"}
        raise ArtifactLostError("the next segment is not there")

    context = CommitContext("j", name, 1, 1, recovering=False)
    with pytest.raises(ArtifactLostError), producer.errors_named():
        producer.commit(Marker(1, 1, 1), context, 1, lambda marker: False, rows)
    wait_until(lambda: transaction_states(kafka, store) == {name: "CompleteAbort"}, within=60)


def test_nothing_is_written_before_the_place_is_known_to_be_right(
    world: KafkaPipelineWorld,
) -> None:
    """As on a cluster that came back empty. Failed before: the start made the topic of markers."""
    markers = f"m-{uuid.uuid4().hex[:12]}"
    world.write_to(marker_topic=markers)
    world.send(2)
    world.run("drained")
    world.kafka.admin.delete_topics([markers])[markers].result()
    wait_until(lambda: not world.kafka.has(markers, PARTITIONS), within=60)
    world.send(1, first=2)
    with pytest.raises(OutputLostError, match="no longer has it"):
        world.run("drained")
    assert not world.kafka.has(markers, PARTITIONS)
    world.run(accept_loss=True)
    assert world.kafka.has(markers, PARTITIONS) and world.found() == world.wanted()


@long
def test_producers_that_are_given_up_do_not_end_the_process(kafka: KafkaWorld):
    """With what `EpochProducer.give_up` says of it, one of some hundred did."""
    command = [sys.executable, "-m", given_up_child.__name__, kafka.servers, kafka.topic(2), "600"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# --- wherever the driver dies ---------------------------------------------------------------------


@pytest.fixture
def world(world: World, kafka: KafkaWorld) -> KafkaPipelineWorld:
    made = KafkaPipelineWorld(world.folder, world.fail_points, world.spark)
    made.set_up(kafka)
    return made


@long  # the first three are in test_order.py, test_kafka_topics.py and test_kafka_refused.py, too
@pytest.mark.parametrize(
    "rules",
    [
        "record.snapshot.after:3=kill",  # decided, nothing committed
        "kafka.commit.produced:3=kill",  # in a transaction that nobody will commit
        "kafka.commit.after:3=kill",  # committed, the record does not know
        "kafka.fenced:2=kill",
        "epoch.acked:3=kill",
        "kafka.commit.before:2=kill",
        "staging.finished:3=kill",
        "manifest.after:3=kill",
        "record.committed.after:2=kill",
    ],
)
def test_killed(world: KafkaPipelineWorld, rules: str):
    world.write_to(marker_topic=f"m-{uuid.uuid4().hex[:12]}")
    world.send(5)
    world.run_child(rules, config={"max_items_per_epoch": 12})
    for name, rows in world.found().items():
        assert not rows - world.wanted()[name], "nothing is there twice, or too early"
    entries = world.assert_ledger_is_true()
    if rules.startswith("record.snapshot.after"):
        assert min(e.epoch_id or 0 for e in entries) < entries[0].decided_epoch_id
    world.run()
    assert world.found() == world.wanted()
    decided = entries[0].decided_epoch_id
    assert all((e.epoch_id or 0) >= decided for e in world.assert_ledger_is_true())


@long
def test_renamed_sinks_complete_what_they_had_begun(world: KafkaPipelineWorld) -> None:
    world.send(5)
    world.run_child("kafka.commit.produced:3=kill", config={"max_items_per_epoch": 12})
    world.place["names"] = ["sums", "large"]
    world.write_to()
    world.send(2, first=5)
    world.run(renamed={"counts_out": "sums", "big_out": "large"})
    assert world.found() == world.wanted()


@long
def test_fifty_kills(world: KafkaPipelineWorld, tmp_path: Path):
    """Kills the driver at random steps; every fifth time the broker is killed while the driver
    runs."""
    rng = random.Random(20261123)
    steps = ("record.snapshot.after", "kafka.fenced", "kafka.commit.before", "epoch.acked")
    steps += ("kafka.commit.produced", "kafka.commit.after", "staging.finished")
    folder = tmp_path / "broker"
    folder.mkdir()
    brokers = [launch("kafka", folder, prepared(folder))]
    try:
        world.set_up(KafkaWorld(brokers[0].facts["servers"]))
        for number in range(50):
            world.send(2, first=number * 2)
            killer = threading.Timer(rng.uniform(0.5, 2), _restart, (brokers, folder))
            if number % 5 == 4:
                killer.start()
            world.run_child(f"{rng.choice(steps)}=kill", config={"max_items_per_epoch": 12})
            if number % 5 == 4:
                killer.join()
            for name, rows in world.found().items():
                assert not rows - world.wanted()[name], "nothing is there twice, or too early"
        world.run()
        assert world.found() == world.wanted()
    finally:
        stop(brokers[-1])


def _restart(brokers: list[SharedServer], folder: Path) -> None:
    stop(brokers[-1], signal.SIGKILL)
    brokers.append(launch("kafka", folder, prepared(folder)))


# --- what is read ---------------------------------------------------------------------------------


def test_aborted_messages_are_not_read_and_do_not_hold_the_end(kafka: KafkaWorld, jet: Jet):
    topic = kafka.topic()
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long")
    kafka.send_in_transaction(topic, [{"v": 1}, {"v": 2}], commit=True)
    kafka.send_in_transaction(topic, [{"v": 3}], commit=False)
    assert values(read(jet, source)) == [1, 2]
    kafka.send_in_transaction(topic, [{"v": 4}], commit=False)
    assert read(jet, source) == []
    kafka.send(topic, [{"v": 5}])
    assert values(read(jet, source)) == [5]


def test_a_log_of_which_few_messages_are_left_is_read_in_large_epochs(kafka: KafkaWorld, jet: Jet):
    """Only a few messages of a compacted topic are left; here the others were aborted. Epochs sized
    by rows became ever smaller."""
    from confluent_kafka import Producer

    topic = kafka.topic()
    settings = {"bootstrap.servers": kafka.servers, "transactional.id": topic}
    producer = Producer({**settings, "queue.buffering.max.messages": 0})
    producer.init_transactions()
    for v in range(125):
        producer.begin_transaction()
        for _ in range(2_000):
            producer.produce(topic, b"{}", partition=0)
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"v": v}), partition=0)
        producer.commit_transaction()
    forget("few")
    p = Pipeline("few")
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long")
    p.read_from(source, name="topic").write_to(sinks.collect("few"), name="out")
    assert jet.run(p, until="drained").epochs <= 10
    assert values(collected("few").to_pylist()) == [*range(125)]


def test_new_partitions_and_topics_are_read_from_their_beginning(kafka: KafkaWorld, jet: Jet):
    from confluent_kafka.admin import NewPartitions

    topic = kafka.topic()
    source = sources.kafka(kafka.servers, pattern=f"{topic}.*", schema="v long", start="latest")
    kafka.send(topic, [{"v": 1}])
    assert read(jet, source) == []
    kafka.admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    wait_until(lambda: kafka.has(topic, 2), within=60)
    kafka.create(f"{topic}-more")
    kafka.send(topic, [{"v": 2}], partition=1)
    kafka.send(f"{topic}-more", [{"v": 3}])
    assert values(read(jet, source)) == [2, 3]


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("earliest", [0, 1, 2, 3]),
        pytest.param("latest", [], marks=long),
        pytest.param(datetime(2026, 1, 1, 0, 0, 2, tzinfo=timezone.utc), [2, 3], marks=long),
        ("2026-01-01T00:00:01.500Z", [2, 3]),
        pytest.param("2030-01-01T00:00:00Z", [], marks=long),
        pytest.param("1960-01-01T00:00:00Z", [0, 1, 2, 3], marks=long),
        ("1969-12-31T23:59:59.999Z", [0, 1, 2, 3]),  # -1 ms, by which Kafka means the end
        ({0: 3}, [3]),
    ],
    ids=str,
)
def test_a_job_begins_where_it_is_told_to(kafka: KafkaWorld, jet: Jet, start: Any, found: Any):
    topic = kafka.topic(retention_ms="-1")
    begin = round(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
    for v in range(4):
        kafka.send(topic, [{"v": v}], timestamp=begin + v * 1000)
    given = {topic: start} if isinstance(start, dict) else start
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long", start=given)
    assert values(read(jet, source)) == found
    kafka.send(topic, [{"v": 9}])
    assert values(read(jet, source)) == [9], "from the snapshot, not from the start again"


def test_metadata_and_raw_values(kafka: KafkaWorld, jet: Jet):
    topic = kafka.topic(retention_ms="-1")
    kafka.send(
        topic, [b"\xff\x00", None], key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=7
    )
    source = sources.kafka(kafka.servers, topics=[topic], format="raw", metadata=True)
    first, second = sorted(read(jet, source), key=lambda row: row["_offset"])
    assert first == {
        "value": b"\xff\x00",
        "_key": b"k",
        "_headers": [{"name": "a", "value": b"1"}, {"name": "a", "value": None}],
        "_topic": topic,
        "_partition": 0,
        "_offset": 0,
        "_timestamp": datetime.fromtimestamp(0.007, timezone.utc),
    }
    assert second["value"] is None


def test_a_time_that_no_column_can_hold_is_null(kafka: KafkaWorld, jet: Jet):
    """Some producers give nanoseconds where Kafka counts milliseconds."""
    topic = kafka.topic(
        retention_ms="-1",
        message_timestamp_after_max_ms=str(2**63 - 1),
        message_timestamp_before_max_ms=str(2**63 - 1),
    )
    kafka.send(topic, [{"v": 1}], timestamp=1_700_000_000_000_000_000)
    kafka.send(topic, [{"v": 2}], timestamp=1_700_000_000_000)
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long", metadata=True)
    found = {row["v"]: row["_timestamp"] for row in read(jet, source)}
    assert found == {1: None, 2: datetime.fromtimestamp(1_700_000_000, timezone.utc)}


def test_messages_that_do_not_fit_are_dead_letters_or_end_the_job(kafka: KafkaWorld, jet: Jet):
    topic = kafka.topic()
    bad = ['{"v": "x"}', "broken", None, "", "[1]", "null", '{"v": 2']
    bad += ['{"v": 5}{"v": 6}', '{"v": 7}\n{"v": 8}', '{"v": 9},{"v": 10}']
    bad += ['{"v": 11}}', '{"v": 12} } \n', '{"v": 13}]', '{"v": 14}}}', '{"v": 15},']
    kafka.send(topic, [{"v": 1}, *bad, {"v": 3}, '\r\n\t {"v": 4}\n', b"not UTF-8: \xff"])
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long", tombstones="dead-letter")
    with pytest.raises(BadRowError, match=rf"job 'reads', stage 'topic', position '{topic}/0@1: "):
        read(jet, source)
    forget("good"), forget("bad")
    p = Pipeline("forgiving")
    rows = p.read_from(source, name="topic")
    rows.dead_letter_to(sinks.collect("bad"), name="bad")
    rows.write_to(sinks.collect("good"), name="good")
    jet.run(p)
    assert values(collected("good").to_pylist()) == [1, 3, 4]
    letters = {row["position"]: row["raw"] for row in collected("bad").to_pylist()}
    places = [f"{topic}/0@{n}" for n in (*range(1, 16), 18)]
    assert letters == dict(zip(places, [*bad, "not UTF-8: \ufffd"], strict=True))


@pytest.mark.parametrize(
    ("time", "kind", "says"),
    [
        (None, BadRowError, "no event time"),
        (2**63 - 1, (ResultError, BadRowError), "fit its type|outside the range"),
    ],
    ids=["none", "beyond all clocks"],
)
def test_the_message_whose_event_time_cannot_be_used_is_named(
    kafka: KafkaWorld, jet: Jet, time: int | None, kind: Any, says: str
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, [{"v": 1, "ts": 1}], partition=0)
    kafka.send(topic, [{"v": 2, "ts": 2}, {"v": 3, "ts": time}, {"v": 4, "ts": 4}], partition=1)
    p = Pipeline("timed")
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long, ts long")
    rows = p.read_from(source, name="topic").with_timestamps("ts")
    counted = rows.window(windows.sliding("3 s", "1 s")).aggregate(n=agg.count(), name="n")
    counted.write_to(sinks.collect("kafka"), name="out")
    with pytest.raises(kind, match=says) as told:
        jet.run(p, JobConfig(restart_attempts_max=0))
    position = str(told.value.position)
    assert position.startswith(f"{topic}/1@1: ") and '"v": 3' in position


def expire(kafka: KafkaWorld, topic: str, before: int) -> None:
    from confluent_kafka import TopicPartition

    place = TopicPartition(topic, 0, before)
    kafka.admin.delete_records([place])[place].result()


def test_messages_that_retention_has_removed_end_the_job_or_are_counted(
    kafka: KafkaWorld, jet: Jet
):
    topic = kafka.topic()
    source = partial(sources.kafka, kafka.servers, topics=[topic], schema="v long")
    kafka.send(topic, [{"v": 0}])
    assert values(read(jet, source())) == [0]
    kafka.send(topic, [{"v": v} for v in range(1, 6)])
    expire(kafka, topic, 4)
    with pytest.raises(InputLostError, match=rf"'{topic}/0@1': retention has removed 3 messages"):
        read(jet, source())
    events: list[Any] = []
    rows = read(jet, source(on_data_loss="skip"), on_event=events.append)
    assert values(rows) == [4, 5]
    assert [event.lost for event in events if isinstance(event, ItemsLost)] == [3]


def test_messages_that_retention_removes_while_a_task_is_about_to_read_them(
    kafka: KafkaWorld, jet: Jet, monkeypatch: pytest.MonkeyPatch
):
    topic = kafka.topic()
    source = partial(sources.kafka, kafka.servers, topics=[topic], schema="v long")
    kafka.send(topic, [{"v": 0}])
    assert values(read(jet, source())) == [0]
    plan, expired = KafkaReader.plan, [4, 9]

    def overtaken(reader: KafkaReader, max_rows: int) -> Any:
        split = plan(reader, max_rows)
        if split is not None and expired and split[0].stop > expired[0]:
            expire(kafka, topic, expired.pop(0))
        return split

    monkeypatch.setattr(KafkaReader, "plan", overtaken)
    kafka.send(topic, [{"v": v} for v in range(1, 6)])
    events: list[Any] = []
    rows = read(jet, source(on_data_loss="skip"), on_event=events.append)
    assert values(rows) == [4, 5], "from its last snapshot, without them"
    assert [event.lost for event in events if isinstance(event, ItemsLost)] == [3]
    assert any(isinstance(event, ExecutionRestarting) for event in events)
    kafka.send(topic, [{"v": v} for v in range(6, 12)])
    with pytest.raises(InputLostError, match=rf"'{topic}/0@6': retention has removed messages"):
        read(jet, source())
    assert not expired


@long  # uneven partitions and new ones have a test each
def test_uneven_partitions_and_a_new_one_while_the_job_runs(kafka: KafkaWorld, jet: Jet):
    """Without an allowed lag a row is late as soon as another partition has closed its window."""
    from confluent_kafka.admin import NewPartitions

    topic = kafka.topic(2)
    sent: list[tuple[int, int]] = []

    def send(partition: int, count: int, from_s: int, until_s: int) -> None:
        """In the order of event time, by ever so many in a second."""
        times = [1000 * from_s + n * 1000 * (until_s - from_s) // count for n in range(count)]
        texts = [datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat() for ms in times]
        rows = [{"p": partition, "at": text} for text in texts]
        kafka.send(topic, rows, partition=partition)
        sent.extend((partition, ms // 1000) for ms in times)

    send(0, 120, 0, 40)
    send(1, 12, 0, 40)
    forget("all"), forget("windows")
    p = Pipeline("uneven")
    source = sources.kafka(kafka.servers, topics=[topic], schema="p int, at timestamp")
    rows = p.read_from(source, name="topic").with_timestamps("at", allowed_lag="0 ms")
    rows.write_to(sinks.collect("all"), name="all")
    rows.group_by("p").window(windows.tumbling("1 second")).aggregate(
        n=agg.count(), name="counts"
    ).write_to(sinks.collect("windows"), name="windows")
    events: list[Any] = []
    config = JobConfig(snapshot_interval="0 ms", max_items_per_epoch=12)
    job = jet.submit(p, config, on_event=events.append)
    wait_until(lambda: collected("all").num_rows == len(sent), within=60)
    kafka.admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    wait_until(lambda: kafka.has(topic, 3), within=60)
    send(2, 30, 41, 50)
    send(0, 5, 40, 50)
    wait_until(lambda: collected("all").num_rows == len(sent), within=60)
    job.cancel()
    job.result(timeout=60)
    jet.run(p, until="completed", on_event=events.append)
    found = collected("windows").to_pylist()
    assert Counter((r["p"], int(r["window_start"].timestamp()), r["n"]) for r in found) == Counter(
        (partition, second, count) for (partition, second), count in Counter(sent).items()
    )
    last = [event for event in events if isinstance(event, SnapshotCommitted)][-1]
    assert last.stages["counts"].late == 0


def test_windows_over_uneven_partitions_close_in_the_epoch_that_reads_their_rows(
    kafka: KafkaWorld, jet: Jet
):
    """The stage's own task knows the newest event of each partition. Each key is in both."""
    topic, sent = kafka.topic(2), []
    for partition, count in ((0, 240), (1, 24)):
        values = [{"k": n % 3, "at": n * 40_000 // count} for n in range(count)]
        kafka.send(topic, values, partition=partition)
        sent += values
    forget("windows")
    p, events = Pipeline("uneven_windows"), []
    source = sources.kafka(kafka.servers, topics=[topic], schema="k int, at bigint")
    rows = p.read_from(source, name="topic").with_timestamps("at", allowed_lag="0 ms")
    rows.group_by("k").window(windows.tumbling("2 seconds")).aggregate(
        n=agg.count(), name="counts"
    ).write_to(sinks.collect("windows"), name="windows")
    config = JobConfig(snapshot_interval="0 ms", max_items_per_epoch=50)
    jet.run(p, config, until="completed", on_event=events.append)
    found = collected("windows").to_pylist()
    assert Counter(
        {(r["k"], int(r["window_start"].timestamp())): r["n"] for r in found}
    ) == Counter((row["k"], row["at"] // 2_000 * 2) for row in sent)
    told = [event.stages["counts"] for event in events if isinstance(event, SnapshotCommitted)]
    assert told[-1].late == 0
    first = next(stage for stage in told if stage.rows_in)
    assert first.rows_out > 0, "an epoch of both partitions has closed windows"


def test_a_topic_that_was_made_anew_ends_the_job(kafka: KafkaWorld, jet: Jet):
    topic = kafka.topic()
    source = partial(sources.kafka, kafka.servers, topics=[topic], schema="v long")
    kafka.send(topic, [{"v": v} for v in range(3)])
    assert values(read(jet, source())) == [0, 1, 2]
    make_anew(kafka, topic)
    kafka.send(topic, [{"v": 3}])
    anew = rf"'{topic}/0@3': the topic was deleted and recreated"
    with pytest.raises(InputLostError, match=anew):
        read(jet, source())
    assert values(read(jet, source(on_data_loss="skip"))) == [3]
    # One that is as long as the old one, and longer.
    make_anew(kafka, topic)
    kafka.send(topic, [{"v": v} for v in (4, 5)])
    with pytest.raises(InputLostError, match=rf"'{topic}/0@1': the topic was deleted and recre"):
        read(jet, source())
    assert values(read(jet, source(on_data_loss="skip"))) == [4, 5]
    kafka.send(topic, [{"v": 6}])
    assert values(read(jet, source())) == [6]


def make_anew(kafka: KafkaWorld, topic: str) -> None:
    kafka.admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in kafka.admin.list_topics(timeout=30).topics, within=60)
    kafka.create(topic)


def test_offsets_are_written_for_dashboards(kafka: KafkaWorld, jet: Jet):
    from confluent_kafka import Consumer, TopicPartition

    topic = kafka.topic()
    kafka.send(topic, [{"v": 1}, {"v": 2}])
    read(jet, sources.kafka(kafka.servers, topics=[topic], schema="v long"))
    group = {"bootstrap.servers": kafka.servers, "group.id": "dagster_jet.reads.topic"}
    consumer = Consumer(group)
    [committed] = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    consumer.close()
    assert committed.offset == 2


# --- what is written ------------------------------------------------------------------------------


def write(jet: Jet, rows: list[Any], schema: str, sink: Any) -> None:
    p = Pipeline("writes")
    p.read_from(sources.items(rows, schema=schema), name="rows").write_to(sink, name="topic")
    jet.run(p)


def test_key_headers_partition_and_time_of_messages(kafka: KafkaWorld, jet: Jet):
    topic = kafka.topic(3, retention_ms="-1")
    sink = sinks.kafka(
        kafka.servers, topic=topic, key=["a", "b"], headers="h", partition="p", timestamp="at"
    )
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    row = {"a": "x", "b": 1, "h": {"n": "v"}, "p": 2, "at": at, "n": None}
    write(jet, [row], "a string, b int, h map<string,string>, p int, at timestamp, n long", sink)
    [message] = kafka.messages(topic)
    assert json.loads(message.key()) == {"a": "x", "b": 1}
    assert json.loads(message.value()) == {"a": "x", "b": 1, "n": None}
    assert message.headers() == [("n", b"v")]
    assert (message.partition(), message.timestamp()[1]) == (2, round(at.timestamp() * 1000))


@pytest.mark.parametrize("transactions", ["roll-forward", "held"])
def test_rows_that_delete_their_key(kafka: KafkaWorld, jet: Jet, transactions: Any):
    """Read back, a compacted topic has the last value of each key."""
    topic = kafka.topic(cleanup_policy="compact")
    sink = sinks.kafka(
        kafka.servers, topic=topic, key="k", tombstone="gone", transactions=transactions
    )
    rows = [("a", 1, False), ("b", 2, None), ("a", None, True), ("c", 3, True), ("c", 4, False)]
    write(jet, rows, "k string, n int, gone boolean", sink)
    found: dict[bytes, list[Any]] = {}
    for message in kafka.messages(topic):
        value = None if message.value() is None else json.loads(message.value())
        found.setdefault(message.key(), []).append(value)
    assert found == {
        b"a": [{"k": "a", "n": 1}, None],
        b"b": [{"k": "b", "n": 2}],
        b"c": [None, {"k": "c", "n": 4}],
    }


def test_every_type_of_a_json_message(kafka: KafkaWorld, jet: Jet, spark: Any):
    """Times keep their microseconds, in values and in keys, whatever zone Spark shows times in."""
    topic = kafka.topic()
    at = datetime(1969, 12, 31, 23, 59, 59, 999_999, timezone.utc)
    inner = {"at": at, "n": None}
    row = {
        "id": 1, "at": at, "wall": datetime(2026, 1, 2, 3, 4, 5, 6), "day": date(1, 1, 1),
        "money": Decimal("12345678901234567890123456789.123456789"), "raw": b"\x00\xff",
        "real": math.nan, "large": -math.inf, "text": 'é ☃ 🜚 "\n', "none": None,
        "items": [1, None], "names": {"a": 1, "b": None}, "inner": inner,
    }  # fmt: skip
    schema = (
        "id long, at timestamp, wall timestamp_ntz, day date, money decimal(38,9), raw binary, "
        "real double, large double, text string, none long, items array<long>, "
        "names map<string,long>, inner struct<at: timestamp, n: long>"
    )
    sink = sinks.kafka(kafka.servers, topic=topic, key=["id", "at", "none"])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        write(jet, [row], schema, sink)
        frame = spark.sql("select timestamp'1969-12-31T23:59:59.999999Z' at")
        [by_time] = sinks.kafka("h:1", topic="t", key="at").render(frame).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    [message] = kafka.messages(topic)
    shown = "1969-12-31T23:59:59.999999Z"
    assert json.loads(message.value(), parse_float=Decimal) == {
        **row, "at": shown, "wall": "2026-01-02T03:04:05.000006", "day": "0001-01-01",
        "raw": "AP8=", "real": "NaN", "large": "-Infinity", "inner": {"at": shown, "n": None},
    }  # fmt: skip
    assert json.loads(message.key()) == {"id": 1, "at": shown, "none": None}
    assert bytes(by_time["__key"]) == shown.encode()


def test_a_nested_key_is_json(kafka: KafkaWorld, jet: Jet):
    """Spark's text of both keys is the same."""
    keys = [{"a": ["x, y", "z"]}, {"a": ["x", "y, z"]}]
    topic = kafka.topic()
    sink = sinks.kafka(kafka.servers, topic=topic, key="k")
    write(jet, [{"k": key} for key in keys], "k struct<a: array<string>>", sink)
    assert [json.loads(message.key()) for message in kafka.messages(topic)] == keys


def test_raw_values(kafka: KafkaWorld, jet: Jet):
    topic = kafka.topic()
    sink = sinks.kafka(kafka.servers, topic=topic, key="k", format="raw")
    write(jet, [("a", b"\xff"), (None, None)], "k string, value binary", sink)
    found = sorted(((m.key(), m.value()) for m in kafka.messages(topic)), key=str)
    assert found == [(None, None), (b"a", b"\xff")]


# --- what a person has to change ------------------------------------------------------------------


def test_what_cannot_be_is_refused_in_a_sentence(kafka: KafkaWorld, jet: Jet):
    source = partial(sources.kafka, kafka.servers)
    with pytest.raises(SourceError, match="stage 'topic': the topic 'nowhere' does not exist, or"):
        read(jet, source(topics=["nowhere"], schema="v long"))
    with pytest.raises(ConfigurationError, match="topics: either topics or pattern"):
        source(schema="v long")
    with pytest.raises(
        ConfigurationError, match="pattern: '\\(' is not a valid regular expression"
    ):
        source(pattern="(", schema="v long")
    with pytest.raises(ConfigurationError, match="schema: json values need one"):
        source(topics=["t"])
    with pytest.raises(ConfigurationError, match="tombstones: raw values cannot have 'dead-"):
        source(topics=["t"], format="raw", tombstones="dead-letter")
    with pytest.raises(ConfigurationError, match="start: 'then' cannot be read"):
        source(topics=["t"], schema="v long", start="then")
    with pytest.raises(ConfigurationError, match=r"sasl.password is given in plain text"):
        source(topics=["t"], schema="v long", options={"sasl.password": "hush"})
    with pytest.raises(ConfigurationError, match=r"isolation.level is set by dagster_jet"):
        source(topics=["t"], schema="v long", options={"isolation.level": "read_uncommitted"})
    for wrong in (-2, {"t": 5}, {"t": {"zero": 1}}, {"t": {0: None}}):
        with pytest.raises(ConfigurationError, match=r"start: .* cannot be read"):
            source(topics=["t"], schema="v long", start=wrong)
    for names in ({"topics": ["t"]}, {"pattern": "t.*"}):
        with pytest.raises(ConfigurationError, match="start: the topic 'other' is not read"):
            source(**names, schema="v long", start={"other": {0: 1}})
    topic = kafka.topic()
    kafka.send(topic, [{"v": 1}])
    with pytest.raises(SourceError, match=rf"'{topic}/1@0': start: the topic has no partition 1"):
        read(jet, source(topics=[topic], schema="v long", start={topic: {0: 1, 1: 0}}))
    with pytest.raises(SourceError, match=rf"'{topic}/0@7': start: the topic has offsets 0 to 1"):
        read(jet, source(topics=[topic], schema="v long", start={topic: {0: 7}}))
    with pytest.raises(ConfigurationError, match="the topic 'nowhere' does not exist, or"):
        write(jet, [[1]], "v long", sinks.kafka(kafka.servers, topic="nowhere"))
    with pytest.raises(PipelineError, match=r"there is no column 'w'. There are v"):
        write(jet, [[1]], "v long", sinks.kafka(kafka.servers, topic=topic, key="w"))
    with pytest.raises(ConfigurationError, match=r"tombstone: .* have none"):
        sinks.kafka(kafka.servers, topic=topic, tombstone="v")
    with pytest.raises(PipelineError, match="column 'v' is bigint, expected a boolean"):
        write(jet, [[1]], "v long", sinks.kafka(kafka.servers, topic=topic, key="v", tombstone="v"))
    p = Pipeline("circle")
    read_by_pattern = source(pattern=f"{topic}.*", schema="v long")
    p.read_from(read_by_pattern, name="all").write_to(
        sinks.kafka(kafka.servers, topic=topic), name="out"
    )
    with pytest.raises(PipelineError, match="stage 'out': the sink writes where the source 'all'"):
        jet.run(p)
    kept = kafka.topic(cleanup_policy="delete")
    with pytest.raises(ConfigurationError, match=r"has cleanup.policy=delete"):
        write(jet, [[1]], "v long", sinks.kafka(kafka.servers, topic=topic, marker_topic=kept))


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch):
    import pickle

    monkeypatch.setenv("KAFKA_PASSWORD", "hush-hush")
    options = {"sasl.username": "me", "sasl.password": Secret(env="KAFKA_PASSWORD")}
    for one in (
        sources.kafka("h:1", topics=["t"], schema="v long", options=options),
        sinks.kafka("h:1", topic="t", options=options),
    ):
        kept = json.dumps(one.destination()) if hasattr(one, "destination") else ""
        for text in (repr(one), str(one.describe()), pickle.dumps(one).decode("latin-1"), kept):
            assert "hush-hush" not in text
        assert one.cluster.settings()["sasl.password"] == "hush-hush"


# --- what a cluster may do meanwhile --------------------------------------------------------------


@long  # the network is cut in test_kafka_outage.py, a broker killed in test_five_kills.py
def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path, spark: Any):
    """The job waits in place, and every row is there once."""
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = launch("kafka", folder, prepared(folder))
    kafka = KafkaWorld(broker.facts["servers"])
    read_from, write_to = kafka.topic(), kafka.topic()
    kafka.send(read_from, [{"v": v} for v in range(100)])
    p = Pipeline("outage")
    source = sources.kafka(kafka.servers, topics=[read_from], schema="v long")
    p.read_from(source, name="rows").write_to(
        sinks.kafka(kafka.servers, topic=write_to), name="out"
    )
    events: list[Any] = []
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0, show_progress=False) as jet:
        job = jet.submit(p, JobConfig(snapshot_interval="100 ms"), on_event=events.append)
        try:
            wait_until(lambda: len(kafka.rows(write_to)) == 100, within=60)
            stop(broker, signal.SIGKILL)
            wait_until(lambda: any(isinstance(e, SourceUnavailable) for e in events), within=60)
            broker = launch("kafka", folder, prepared(folder))
            kafka.send(read_from, [{"v": v} for v in range(100, 200)])
            wait_until(lambda: len(kafka.rows(write_to)) >= 200, within=90)
            job.cancel()
            job.result(timeout=60)
            assert Counter(row["v"] for row in kafka.rows(write_to)) == Counter(range(200))
        finally:
            stop(broker)
    assert not any(isinstance(event, ExecutionRestarting) for event in events)
