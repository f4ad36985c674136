"""Credentials, rights and limits of a cluster: what a start says of each, in one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from dagster_jet import Secret, sinks, sources
from dagster_jet.connectors.kafka import KafkaSink, offsets
from dagster_jet.connectors.kafka import kafka_probe as probe_module
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.kafka_committer import KafkaCommitter
from dagster_jet.connectors.kafka.markers import PARTITIONS
from dagster_jet.connectors.kafka.offsets import Offsets, Topics
from dagster_jet.connectors.kafka.transaction_coordinator import client_settings
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import ConfigurationError, JetError, Reaction, SinkError, SourceError
from dagster_jet.store import Store, StoreConfig
from tests.long import long
from tests.servers import wait_until
from tests.servers.kafka import PASSWORD, USER, kafka_server
from tests.servers.members import _self_signed

from .kafka_world import KafkaWorld


@pytest.fixture(scope="module")
def kafka() -> KafkaWorld:
    return KafkaWorld()


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": Secret(env="KAFKA_PASSWORD"),
    }


def grant(
    kafka: KafkaWorld, kind: ResourceType, name: str, *operations: str, prefix: bool = False
) -> None:
    for operation in operations:
        rule = AclBinding(
            kind,
            name,
            ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        kafka.admin.create_acls([rule])[rule].result()


def refused(start: Callable[[], object], kind: type[JetError], words: str) -> None:
    """Asserts a final refusal with these words and without the password. A right granted a moment
    ago may take effect at the broker a moment later."""
    until = time.monotonic() + 10
    while True:
        with pytest.raises(JetError) as raised:
            start()
        if words in str(raised.value) or time.monotonic() > until:
            break
    assert words in str(raised.value)
    assert isinstance(raised.value, kind) and raised.value.reaction is Reaction.FAIL
    assert "hush" not in str(raised.value) and ".. " not in str(raised.value)


def test_wrong_credentials(
    kafka: KafkaWorld, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    monkeypatch.setattr(offsets, "CALL_S", 2.0)  # the client tries again and again for so long
    servers, topic = kafka_server().facts["sasl_servers"], kafka.topic()
    source = sources.kafka(servers, topics=[topic], schema="v long", options=options)
    start = partial(source.at_start, "j", "s", on_one_host=True)
    refused(start, SourceError, "the cluster refuses the request: ")
    sink = sinks.kafka(servers, topic=topic, options=options)
    words = "Authentication failed: Invalid username or password"
    refused(partial(sink.check, "j", "s", is_new_job=True), ConfigurationError, words)


def test_each_missing_right_of_a_source(kafka: KafkaWorld, options: dict[str, Any]):
    topic = kafka.topic()
    servers = kafka_server().facts["sasl_servers"]
    source = sources.kafka(servers, topics=[topic], schema="v long", options=options)
    start = partial(source.at_start, "j", "s", on_one_host=True)
    refused(start, SourceError, "does not exist, or this user may not see it")
    grant(kafka, ResourceType.TOPIC, topic, "DESCRIBE")
    refused(start, ConfigurationError, f"this user may not: READ on {topic!r}")
    grant(kafka, ResourceType.TOPIC, topic, "READ")
    until_allowed(start)


def test_each_missing_right_of_a_sink(kafka: KafkaWorld, options: dict[str, Any], tmp_path: Any):
    topic, markers = kafka.topic(), kafka.topic(PARTITIONS, cleanup_policy="compact")
    servers = kafka_server().facts["sasl_servers"]
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        plain = sinks.kafka(servers, topic=topic, marker_topic=markers, options=options)
        sink = plain.with_store(store)
        start = partial(sink.check, "j", "out", is_new_job=True)
        refused(start, ConfigurationError, "does not exist, or this user may not see it")
        grant(kafka, ResourceType.TOPIC, topic, "DESCRIBE")
        refused(start, ConfigurationError, f"{markers!r} does not exist or this user")
        grant(kafka, ResourceType.TOPIC, markers, "DESCRIBE")
        refused(start, ConfigurationError, f"settings of the marker topic {markers!r} cannot be")
        grant(kafka, ResourceType.TOPIC, markers, "DESCRIBE_CONFIGS", "READ")
        words = f"this user may not: WRITE on {topic!r}, WRITE on {markers!r}"
        refused(start, ConfigurationError, words)
        grant(kafka, ResourceType.TOPIC, topic, "WRITE")
        grant(kafka, ResourceType.TOPIC, markers, "WRITE")
        transactional_id = committer_of(sink).owner.transactional_id
        refused(start, SinkError, f"the transactional id {transactional_id!r}")
        grant(kafka, ResourceType.TRANSACTIONAL_ID, transactional_id, "WRITE")
        until_allowed(start)


@long
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_held_transactions_of_a_user_who_signs_in(
    kafka: KafkaWorld,
    options: dict[str, Any],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    caplog: pytest.LogCaptureFixture,
):
    """Neither client's log shows the password."""
    for name in ("kafka", "kafka.net", "kafka.protocol"):
        caplog.set_level("DEBUG", logger=name)
    options |= {"sasl.mechanism": mechanism}
    if mechanism != "PLAIN":
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        [done] = kafka.admin.alter_user_scram_credentials([user]).values()
        done.result()
    topic, markers = kafka.topic(), kafka.topic(PARTITIONS, cleanup_policy="compact")
    kafka.create(f"{markers}-held", PARTITIONS, cleanup_policy="compact")
    for one in (topic, markers, f"{markers}-held"):
        grant(kafka, ResourceType.TOPIC, one, "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
    servers = kafka_server().facts["sasl_servers"]
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        made = sinks.kafka(
            servers, topic=topic, transactions="held", marker_topic=markers, options=options
        )
        sink = made.with_store(store)
        start = partial(sink.check, "j", "out", is_new_job=True)
        prefix = f"dagster_jet/{store.store_id}/"
        grant(kafka, ResourceType.TRANSACTIONAL_ID, prefix, "WRITE", prefix=True)
        until_allowed(start)
        writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a"))
        writer.write(pa.record_batch({"__key": [b"k"], "__value": [b'{"v": 1}']}))
        artifacts, context = writer.prepare(), CommitContext("j", "out", 1, 1, recovering=False)
        monkeypatch.setenv("KAFKA_PASSWORD", "hush")
        wrong = sink.open_committer("j", "out")
        words = "the transaction coordinator refuses us"
        refused(partial(wrong.commit, artifacts, context), SinkError, words)
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
        wrong.commit(artifacts, context)
        wrong.close()
    assert kafka.rows(topic) == [{"v": 1}]
    assert PASSWORD not in caplog.text and "kafka" in caplog.text


@long
def test_held_transactions_over_tls(kafka: KafkaWorld, options: dict[str, Any], tmp_path: Any):
    """Both clients; and what is said of a certificate that nobody vouches for."""
    facts = kafka_server().facts
    options |= {"security.protocol": "SASL_SSL", "ssl.ca.location": facts["certificate"]}
    topic, markers = kafka.topic(), kafka.topic(PARTITIONS, cleanup_policy="compact")
    kafka.create(f"{markers}-held", PARTITIONS, cleanup_policy="compact")
    for one in (topic, markers, f"{markers}-held"):
        grant(kafka, ResourceType.TOPIC, one, "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        prefix = f"dagster_jet/{store.store_id}/"
        grant(kafka, ResourceType.TRANSACTIONAL_ID, prefix, "WRITE", prefix=True)

        def made() -> Any:
            made = sinks.kafka(
                facts["tls_servers"],
                topic=topic,
                transactions="held",
                marker_topic=markers,
                options=options,
            )
            return made.with_store(store)

        until_allowed(partial(made().check, "j", "out", is_new_job=True))
        writer = made().open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a"))
        writer.write(pa.record_batch({"__key": [b"k"], "__value": [b'{"v": 1}']}))
        artifacts, context = writer.prepare(), CommitContext("j", "out", 1, 1, recovering=False)
        other = tmp_path / "other"
        other.mkdir()
        options["ssl.ca.location"] = str(_self_signed(other)[0])
        words = "the broker's certificate cannot be verified: ssl.ca.location must be"
        wrong = made()
        refused(partial(wrong.check, "j", "out", is_new_job=True), ConfigurationError, words)
        committer = wrong.open_committer("j", "out")
        refused(partial(committer.commit, artifacts, context), SinkError, words)
        committer.close()
        source = sources.kafka(
            facts["tls_servers"], topics=[topic], schema="v long", options=options
        )
        refused(partial(source.at_start, "j", "s", on_one_host=True), SourceError, words)
        options["ssl.ca.location"] = facts["certificate"]
        committer = made().open_committer("j", "out")
        committer.commit(artifacts, context)
        committer.close()
    assert kafka.rows(topic) == [{"v": 1}]


def test_security_that_the_other_client_does_not_know_is_refused(kafka: KafkaWorld):
    options = {"sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/k"}
    sink = sinks.kafka(kafka.servers, topic="t", transactions="held", options=options)
    with pytest.raises(ConfigurationError, match=r"sasl\.kerberos\.keytab cannot be used"):
        client_settings(sink.cluster)


def test_a_transaction_time_out_that_the_broker_refuses_is_found_at_the_start(
    kafka: KafkaWorld, tmp_path: Any
):
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with Store.open(config) as store:
        too_long = {"transaction.timeout.ms": "1000000"}
        sink = sinks.kafka(kafka.servers, topic=kafka.topic(), options=too_long).with_store(store)
        words = "transaction.timeout.ms is above the broker's transaction.max.timeout.ms"
        refused(partial(sink.check, "j", "out", is_new_job=True), SinkError, words)


def test_a_probe_by_a_user_who_may_hardly_do_anything(
    kafka: KafkaWorld,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    """Each question has an answer, or why there is none; the marker topic may be seen, and not be
    looked at."""
    topic, markers = kafka.topic(), kafka.topic(PARTITIONS, cleanup_policy="compact")
    monkeypatch.setattr(probe_module, "MARKER_TOPIC", markers)
    for one in (topic, markers):
        grant(kafka, ResourceType.TOPIC, one, "DESCRIBE")
    cluster = Cluster.of(kafka_server().facts["sasl_servers"], options)

    until_allowed(Offsets(cluster, Topics((topic, markers)), "j", "s").partitions)
    findings = probe_module.probe(cluster, timedelta(seconds=1), topic)
    for question, verdict, meaning in (
        ("Does it carry out transactions for this user?", "no", "Transactional Id authorization"),
        (f"Can the topic {markers} say what", "unknown", "It is there. Topic authorization"),
        (f"May the user read or write {topic}?", "no", "Neither."),
        ("Are the brokers' settings right?", "unknown", "Cluster authorization failed."),
        ("Does it keep a transaction that is held when its producer", "unknown", "refuses us: "),
        (f"Does it keep messages of {topic}", "unknown", "Topic authorization failed."),
    ):
        [found] = [one for one in findings if one.question.startswith(question)]
        assert found.verdict.value == verdict and meaning in found.meaning, found
        assert PASSWORD not in f"{found.meaning} {found.cure}"
    assert "FATAL" not in capfd.readouterr().err, "the client library does not speak for itself"


def committer_of(sink: KafkaSink) -> KafkaCommitter:
    committer = sink.open_committer("j", "out")
    assert isinstance(committer, KafkaCommitter)
    return committer


def until_allowed(start: Callable[[], object]) -> None:
    def allowed() -> bool:
        start()
        return True

    wait_until(allowed, within=10)
