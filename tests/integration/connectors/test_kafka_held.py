"""Held transactions of a real broker: produced in phase 1, committed by their producer ids.

The names of the first tests are what seed 002 says of transactional connectors. What is visible is
judged by a plain consumer that reads committed messages.
"""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from dagster_jet import Secret, sinks
from dagster_jet.connectors.kafka.held_rows import HeldTransaction
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import ArtifactLostError, FencedError, SinkError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.store import Store, StoreConfig
from dagster_jet.testing import check_sink
from tests.long import long
from tests.servers import launch, stop, wait_until
from tests.servers.kafka import network, prepared

from .held_transactions import open_transactions, transaction_states
from .kafka_world import (
    KafkaWorld,
    another_topic,
    away,
    committed_unheard,
    impatient,
    is_end_of_transaction,
)

JOB, STAGE = "check_sink", "out"
MESSAGES = pa.schema([("__key", pa.binary()), ("__value", pa.binary())])


class Held:
    """A topic, and what executions do to it."""

    def __init__(self, store: Store, kafka: KafkaWorld, **options: str) -> None:
        self.store, self.kafka, self.topic = store, kafka, kafka.topic(2)
        # Of its own: another test's open transactions are older, and would be waited for.
        self.markers = f"m-{uuid.uuid4().hex[:12]}"
        self.sink = self.made(**options)
        self.sink.check(JOB, STAGE, is_new_job=True)

    def made(self, transactions: str = "held", **options: str) -> Any:
        sink = sinks.kafka(
            self.kafka.servers,
            topic=self.topic,
            transactions=transactions,
            writers=3,
            marker_topic=self.markers,
            options={"session.timeout.ms": "6000", **options},
        )
        return sink.with_store(self.store)

    def writer(self, epoch: int, *, execution: int = 1, shard: int = 0, attempt: str = "a") -> Any:
        id = TransactionId(JOB, STAGE, 1, execution, epoch, shard, attempt)
        return self.sink.open_writer(id)

    def prepared(self, epoch: int, *values: int, **more: Any) -> list[Artifact]:
        writer = self.writer(epoch, **more)
        writer.write(rows(*values))
        found = list(writer.prepare())
        writer.close()
        return found

    def commit(self, artifacts: list[Artifact], execution: int = 1, **more: Any) -> None:
        committer = self.sink.open_committer(JOB, STAGE)
        try:
            committer.commit(artifacts, replace(self.context(execution), **more))
        finally:
            committer.close()

    def commits(self, artifacts: list[Artifact], execution: int) -> bool:
        """False: to be made again, as the engine does."""
        try:
            self.commit(artifacts, execution)
        except SinkUnavailableError:
            return False
        return True

    def abort_orphans(self, execution: int, *keep: Artifact, **more: Any) -> int:
        committer = self.sink.open_committer(JOB, STAGE)
        tokens = [artifact.token for artifact in keep]
        found = committer.abort_orphans(replace(self.context(execution), **more), tokens)
        committer.close()
        return int(found)

    def context(self, execution: int) -> CommitContext:
        return CommitContext(JOB, STAGE, 1, execution, recovering=True)

    def values(self) -> list[int]:
        return sorted(row["v"] for row in self.kafka.rows(self.topic))

    def states(self) -> dict[str, str]:
        return transaction_states(self.kafka, self.store.store_id)

    def open(self) -> set[str]:
        return open_transactions(self.kafka, self.store.store_id)


def rows(*values: int) -> pa.RecordBatch:
    content = {"__key": [None] * len(values), "__value": [b'{"v": %d}' % v for v in values]}
    return pa.record_batch(content, schema=MESSAGES)


@pytest.fixture(scope="module")
def kafka() -> KafkaWorld:
    return KafkaWorld()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        yield store


@pytest.fixture
def held(store: Store, kafka: KafkaWorld) -> Held:
    return Held(store, kafka)


def test_t1_begins_while_t0_is_undecided(held: Held) -> None:
    t0 = held.prepared(1, 10)
    t1 = held.writer(2)
    t1.write(rows(20))
    assert held.values() == [], "neither is visible"
    held.commit(t0)
    assert held.open() == {"0-0"}, "T0 is committed while T1 is written"
    decided = list(t1.prepare())
    t1.close()
    held.commit(decided)
    held.commit(held.prepared(3, 30))  # under T0's id: a pool of two
    assert held.values() == [10, 20, 30] and not held.open()
    assert set(held.states()) <= {"0-0", "0-1", "out"}, "out: what the start has tried out"
    assert held.store.map(f"jobs/{JOB}/staged/{STAGE}").keys("") == []


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, marks=long, id="stopped"),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
def test_commit_after_restart(tmp_path: Path, store: Store, how: int) -> None:
    """The broker stops, or is killed, between prepare and commit."""
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = launch("kafka", folder, prepared(folder))
    try:
        held = Held(store, KafkaWorld(broker.facts["servers"]))
        t0, t1 = held.prepared(1, 10, 11), held.prepared(2, 20)
        stop(broker, how)
        with impatient(), pytest.raises(SinkUnavailableError, match="does not answer now"):
            held.commit(t0, execution=2)
        broker = launch("kafka", folder, prepared(folder))
        wait_until(lambda: held.commits(t0, execution=2), within=60)
        assert held.abort_orphans(2) == len(t1) + 1, "its transaction, and what it has staged"
        assert held.values() == [10, 11] and not held.open()
    finally:
        stop(broker)


def test_ids_not_in_the_snapshot_are_rolled_back(held: Held) -> None:
    """Ids of writers that the sink no longer has are rolled back, too."""
    decided = [*held.prepared(1, 10), *held.prepared(1, 11, shard=2)]
    held.prepared(2, 20)
    held.prepared(2, 21, shard=4)
    held.commit(decided, execution=2)
    assert held.open() == {"0-0", "4-0"}
    held.abort_orphans(2, held_writers=5)
    assert held.values() == [10, 11] and not held.open()


def test_the_fate_of_a_commit_whose_answer_was_lost_is_asked(held: Held) -> None:
    t0 = held.prepared(1, 10)
    held.commit(t0)
    held.commit(t0, execution=2)  # the coordinator says that it is
    held.commit(held.prepared(3, 30, execution=2), execution=2)
    held.commit(t0, execution=1)  # the id has been used since: the marker says that it is
    assert held.values() == [10, 30]
    assert held.states()["0-1"] == "CompleteCommit", "and the newer transaction was not touched"


def test_a_transaction_that_timed_out_is_produced_again_from_what_is_staged(
    store: Store, kafka: KafkaWorld
) -> None:
    held = Held(store, kafka, **{"transaction.timeout.ms": "1000"})
    lost, kept = held.prepared(1, 10, 11), held.prepared(1, 12, shard=1)
    wait_until(lambda: not held.open(), within=60)
    assert held.values() == []
    for _ in range(2):
        held.commit([*lost, *kept], execution=2)
        assert held.values() == [10, 11, 12]


def test_an_aborted_transaction_beside_an_open_one_is_not_waited_for(held: Held) -> None:
    """A marker shows once all before it in its partition are decided: the next epoch's is not, and
    waits for this commit."""
    gone, whole = held.prepared(1, 10), held.prepared(1, 11, shard=1)
    end_by_hand(held, gone)
    newer = held.prepared(2, 20)
    held.commit([*gone, *whole])
    held.commit(newer)
    assert held.values() == [10, 11, 20]


@pytest.mark.parametrize(
    "together",
    [pytest.param(True, id="decided together"), pytest.param(False, marks=long, id="one by one")],
)
def test_rows_that_are_produced_again_stay_before_those_of_the_next_epoch(
    held: Held, together: bool
) -> None:
    """The next epoch was produced while this one's fate was open."""
    held.topic = held.kafka.topic()  # of one partition
    held.sink = held.made()
    gone, newer = held.prepared(1, 10, 11), held.prepared(2, 20, 21)
    end_by_hand(held, gone)
    if together:
        held.commit([*gone, *newer])
        held.commit([*gone, *newer], execution=2)
    else:
        with pytest.raises(SinkError, match=r"epoch 1: .* again, behind those of the next"):
            held.commit(gone, recovering=False)
        # The restart, to which the second epoch is an orphan, and comes once more.
        held.commit(gone, execution=2)
        assert held.abort_orphans(2, *gone) == 2, "the transaction, and what was staged"
        held.commit(held.prepared(2, 20, 21, execution=2), execution=2)
    messages = sorted(held.kafka.messages(held.topic), key=lambda m: (m.partition(), m.offset()))
    in_order = [json.loads(message.value())["v"] for message in messages]
    assert in_order == [10, 11, 20, 21] and not held.open()


def test_rows_that_are_neither_held_nor_staged_are_told_as_lost(held: Held) -> None:
    [t0] = held.prepared(1, 10)
    end_by_hand(held, [t0])
    map = held.store.map(f"jobs/{JOB}/staged/{STAGE}")
    map.delete_all(map.keys(""))
    with pytest.raises(ArtifactLostError, match="1 rows for"):
        held.commit([t0])
    told: list[Artifact] = []
    held.commit([t0], accept_loss=True, report_lost=told.append)
    assert [one.rows for one in told] == [1] and held.values() == []


def end_by_hand(held: Held, artifacts: list[Artifact]) -> None:
    """Aborts a transaction by taking its id."""
    for artifact in artifacts:
        found = HeldTransaction.of(artifact.token)
        assert found is not None
        committer = held.sink.open_committer(JOB, STAGE)
        id = committer._owner(found.part).transactional_id
        other = Producer(
            {"bootstrap.servers": held.kafka.servers, "transactional.id": id, "log_level": 0}
        )
        other.init_transactions(30)


def test_a_sleeper_touches_nothing_that_is_newer(held: Held) -> None:
    """A driver that was believed dead wakes up, in the middle of whatever it was about to do."""
    held.prepared(1, 10, execution=1)
    held.abort_orphans(2)
    new = held.prepared(1, 10, execution=2)
    assert held.abort_orphans(1) == 0, "it finds a newer one's transaction"
    assert held.open() == {"0-1"}
    held.commit(new, execution=2)
    more = held.prepared(3, 30, execution=2)
    end_by_hand(held, more)
    held.commit(more, execution=2)  # rolled forward
    held.commit(more, execution=1)
    assert held.values() == [10, 30]
    fresh = held.prepared(5, 50, execution=2)
    end_by_hand(held, fresh)
    held.commit(fresh, execution=3)
    with pytest.raises(FencedError):
        held.commit(aborted(held, 7), execution=2)
    assert held.values() == [10, 30, 50]


def aborted(held: Held, epoch: int) -> list[Artifact]:
    artifacts = held.prepared(epoch, epoch * 10, execution=3)
    end_by_hand(held, artifacts)
    return artifacts


def test_a_task_of_a_dead_execution_leaves_nothing_open(held: Held) -> None:
    """The task's transaction would hold back readers of the topic until it times out."""
    begun = held.writer(1)
    begun.write(rows(10))
    late = held.writer(1, shard=1)
    held.abort_orphans(2)
    begun.write(rows(11))  # it may be in the middle of anything
    with pytest.raises(SinkError, match="a newer execution of the job writes to the topic"):
        begun.prepare()
    begun.abort()
    with pytest.raises(SinkError, match="a newer execution of the job writes to the topic"):
        late.write(rows(12))
    late.abort()
    held.commit(held.prepared(1, 10, 11, 12, execution=2), execution=2)
    assert held.values() == [10, 11, 12] and not held.open()


@pytest.mark.parametrize("transactions", ["roll-forward", pytest.param("held", marks=long)])
def test_a_key_is_in_the_partition_where_java_puts_it(
    store: Store, kafka: KafkaWorld, transactions: str
) -> None:
    """Hashes of Kafka's own test of its murmur2 (UtilsTest)."""
    hashes = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    held = Held(store, kafka)
    held.topic = kafka.topic(7)
    held.sink = held.made(transactions)
    writer = held.writer(1)
    content = {"__key": list(hashes), "__value": [b"1"] * len(hashes)}
    writer.write(pa.record_batch(content, schema=MESSAGES))
    held.commit(list(writer.prepare()))
    found = {message.key(): message.partition() for message in kafka.messages(held.topic)}
    assert found == {key: (hash & 0x7FFFFFFF) % 7 for key, hash in hashes.items()}


@long
def test_a_commit_is_cut_off_before_it_arrives_and_within_its_answer(
    store: Store, kafka: KafkaWorld
) -> None:
    with network("held") as proxy:
        held = Held(store, KafkaWorld(f"127.0.0.1:{proxy.port}"))
        first, second = held.prepared(1, 10, 11), held.prepared(2, 20)

        def cut_off(artifacts: list[Artifact]) -> None:
            with pytest.raises(SinkUnavailableError, match="does not answer now"):
                held.commit(artifacts)
            assert proxy.is_cut

        proxy.cut_after(1)
        cut_off(first)
        proxy.restore()
        assert held.open() == {"0-0", "0-1"}, "nothing was committed"
        proxy.cut_answer_to(is_end_of_transaction)
        cut_off(first)
        there = [row["v"] for row in kafka.rows(held.topic)]
        assert sorted(there) == [10, 11], "the broker has committed, and nobody knows"
        proxy.restore()
        held.commit([*first, *second])
        assert held.values() == [10, 11, 20] and not held.open()
        everything = kafka.rows(held.topic, committed=False)
        assert len(everything) == 3, "nothing was produced again"


@long  # that of a topic is in test_kafka.py, that of held transactions in test_sql_held.py
def test_the_contract_is_kept(held: Held, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hush-hush")
    topic, anew = (held.kafka.topic(2, max_message_bytes="4000000") for _ in range(2))
    topics = [topic]
    markers = f"m-{uuid.uuid4().hex[:12]}"

    def make() -> Any:
        sink = sinks.kafka(
            f"127.0.0.1:{proxy.port}",
            topic=topics[-1],
            key="text",
            transactions="held",
            writers=3,
            marker_topic=markers,
            options={
                "sasl.username": "me",
                "sasl.password": Secret(env="KAFKA_PASSWORD"),
                "reconnect.backoff.max.ms": "500",
            },
        )
        return sink.with_store(held.store)

    with network("held") as proxy:
        check_sink(
            make,
            lambda: held.kafka.rows(topic),
            spark=spark,
            log_of=itemgetter("text"),
            outages={
                "a connection that is cut": partial(away, proxy),
                "an answer that is lost": partial(committed_unheard, proxy),
            },
            secrets=["hush-hush"],
            refused=[{"text": "x" * 4_100_000}],
            set_back={
                "a topic that was made anew, while the markers stay": partial(
                    another_topic, topics, anew
                ),
            },
            steps=(
                "staging.put.before",
                "staging.finished",
                "kafka.held.begun",
                "kafka.held.before",
                "kafka.held.prepared",
                "kafka.held.commit.before",
                "kafka.held.commit.after",
            ),
        )
    assert Counter(row["id"] for row in held.kafka.rows(topic)).most_common(1)[0][1] == 1
