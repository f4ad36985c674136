"""Kafka behind a network that is not there: at the start, in the middle, at the end."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.kafka import producing, transactions
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.offsets import Offsets, Partition, Topics
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import SinkUnavailableError, SourceUnavailableError
from dagster_jet.execution.events import ExecutionRestarting, SourceUnavailable
from dagster_jet.store import Store, StoreConfig
from tests.long import long
from tests.servers import wait_until
from tests.servers.kafka import network
from tests.servers.proxy import Proxy

from .kafka_world import KafkaWorld


@long
def test_a_job_that_starts_while_the_cluster_is_away_waits_in_place(
    tmp_path: Path, spark: Any, caplog: pytest.LogCaptureFixture
):
    """Cut at the start, in the middle of commits, and at the end: not one restart, each row once,
    and whoever cancels the job does not wait for the cluster."""
    kafka = KafkaWorld()
    read_from, write_to = kafka.topic(), kafka.topic()
    kafka.send(read_from, [{"v": v} for v in range(100)])
    events: list[Any] = []
    with (
        network("outage") as proxy,
        Jet(store=[f"file://{tmp_path}/store"], backup_count=0, show_progress=False) as jet,
    ):
        servers = f"127.0.0.1:{proxy.port}"
        p = Pipeline("cut")
        soon = {"reconnect.backoff.max.ms": "500"}
        source = sources.kafka(servers, topics=[read_from], schema="v long", options=soon)
        sink = sinks.kafka(servers, topic=write_to, options=soon)
        p.read_from(source, name="rows").write_to(sink, name="out")
        with proxy.cut():
            job = jet.submit(p, JobConfig(snapshot_interval="100 ms"), on_event=events.append)
            wait_until(lambda: "job 'cut' waits to start: out" in caplog.text, within=60)
        wait_until(lambda: len(kafka.rows(write_to)) == 100, within=60)
        for first in (100, 200, 300):
            proxy.cut_after(3_000)  # in the middle of whatever is being said then
            kafka.send(read_from, [{"v": v} for v in range(first, first + 100)])
            wait_until(lambda: proxy.is_cut, within=60)
            proxy.restore()
            wait_until(lambda wanted=first + 100: len(kafka.rows(write_to)) >= wanted, within=60)
        with proxy.cut():
            wait_until(lambda: any(isinstance(e, SourceUnavailable) for e in events), within=60)
            began = time.monotonic()
            job.cancel()
            job.result(timeout=60)
            assert time.monotonic() - began < 30
    assert Counter(row["v"] for row in kafka.rows(write_to)) == Counter(range(400))
    assert not any(isinstance(event, ExecutionRestarting) for event in events)


def test_a_question_that_is_cut_off_has_no_answer():
    """The library gives out an offset then that is none, and no error: jobs ended because their
    topic was "made anew"."""
    kafka = KafkaWorld()
    partition = Partition(kafka.topic(), 0)
    kafka.send(partition.topic, [{"v": 1}])
    with network("outage") as proxy:
        cluster = Cluster(f"127.0.0.1:{proxy.port}")
        offsets = Offsets(cluster, Topics((partition.topic,)), "j", "rows")
        assert offsets.first_and_last([partition])[1] == {partition: 1}
        proxy.cut_after(10)
        with pytest.raises(SourceUnavailableError):
            offsets.first_and_last([partition])


def test_a_poll_that_is_cut_off_does_not_forget_where_new_partitions_begin():
    kafka = KafkaWorld()
    topic = kafka.topic()
    kafka.send(topic, [{"v": v} for v in range(3)])
    asked: list[bytes] = []

    def is_third(request: bytes) -> bool:
        """ListOffsets: where to begin takes the first two."""
        asked.extend([request] if request[4:6] == (2).to_bytes(2, "big") else [])
        return len(asked) == 3

    with network("outage") as proxy:
        servers = f"127.0.0.1:{proxy.port}"
        source = sources.kafka(servers, topics=[topic], schema="v long")
        reader = source.open("j", "rows", None)
        proxy.cut_answer_to(is_third)
        with pytest.raises(SourceUnavailableError):
            reader.poll()
        proxy.restore()

        def polled() -> bool:
            reader.accept(reader.poll())  # made again, until the client has connected again
            return True

        wait_until(polled, within=30)
        assert reader.waiting().items == 3
        reader.close()


def test_a_source_that_has_not_answered_yet_begins_where_it_is_told_to():
    """The source is new in its pipeline: a snapshot of the other sources does not wait for it."""
    kafka = KafkaWorld()
    topic = kafka.topic()
    kafka.send(topic, [{"v": v} for v in range(3)])
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long", start="latest")
    position = source.open("j", "rows", None).position()
    for sent in (0, 1):
        reader = source.open("j", "rows", None)
        reader.restore(json.loads(json.dumps(position)), None)
        reader.accept(reader.poll())
        assert reader.waiting().items == sent
        position = reader.position()
        kafka.send(topic, [{"v": 3}])


@pytest.mark.parametrize("when", [pytest.param("opened", marks=long), "produced"])
def test_a_commit_that_is_cut_off_ends_soon_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
):
    """The commit stays one transaction: rows that were sent are not sent again."""
    import pyarrow as pa

    monkeypatch.setattr(transactions, "SILENCE_S", 1.0)
    monkeypatch.setattr(transactions, "CALL_S", 0.5)
    kafka = KafkaWorld()
    topic = kafka.topic()
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with network("outage") as proxy, Store.open(config) as store:
        sink = sinks.kafka(f"127.0.0.1:{proxy.port}", topic=topic).with_store(store)
        sink.check("j", "out", is_new_job=True)
        writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a0"))
        rows = {"__key": [None] * 3, "__value": [b'{"v": 1}', b'{"v": 2}', b'{"v": 3}']}
        schema = pa.schema([("__key", pa.binary()), ("__value", pa.binary())])
        writer.write(pa.record_batch(rows, schema=schema))
        artifacts, committer = writer.prepare(), sink.open_committer("j", "out")
        context = CommitContext("j", "out", 1, 1, recovering=False)
        if when == "produced":
            monkeypatch.setattr(producing, "fail_point", lambda name: cut_at(name, proxy))
        else:
            proxy.break_off()
        with pytest.raises(SinkUnavailableError):
            committer.commit(artifacts, context)
        client = committer.producer.client  # type: ignore[attr-defined]
        assert client is not None, "the next call goes on with it"
        proxy.restore()
        monkeypatch.setattr(producing, "fail_point", lambda name: None)

        def committed() -> bool:
            committer.commit(artifacts, context)
            return True

        wait_until(committed, within=30)
        committer.close()
    assert sorted(row["v"] for row in kafka.rows(topic)) == [1, 2, 3]
    assert len(kafka.rows(topic, committed=False)) == 3


def cut_at(name: str, proxy: Proxy) -> None:
    if name == "kafka.commit.produced":
        proxy.break_off()
