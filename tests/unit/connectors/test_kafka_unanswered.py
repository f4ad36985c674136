"""Errors for a cluster that does not answer: one that refuses us, an older one, another server that
speaks as Kafka does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import KafkaError, KafkaException

from dagster_jet.connectors.kafka import kafka_probe as probing
from dagster_jet.connectors.kafka import rights
from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.marker_topic import check_marker_topic
from dagster_jet.connectors.kafka.markers import MARKER_TOPIC
from dagster_jet.connectors.kafka.offsets import Offsets, Partition, Topics
from dagster_jet.connectors.kafka.topic_limits import TopicLimits
from dagster_jet.core.answers import Verdict, answered
from dagster_jet.errors import (
    ConfigurationError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
)

CLUSTER = Cluster("a:9092")
NOTHING = SimpleNamespace(authorized_operations=None)
"""Answer of a broker that does not report the client's rights."""


def refused() -> Exception:
    return KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


def unsupported() -> Exception:
    return KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE))


def silent() -> Exception:
    return TimeoutError()


class Untold:
    """An `AdminClient` of a cluster with a topic, each of whose further answers is an error, or
    says nothing."""

    def __init__(self, why: Callable[[], Exception] | None) -> None:
        self._why = why

    def __call__(self, settings: Any) -> Untold:
        return self

    def list_topics(self, **_: Any) -> Any:
        topic = SimpleNamespace(partitions={0: SimpleNamespace(replicas=[1])}, error=None)
        return SimpleNamespace(brokers={1: "a"}, topics={"t": topic, MARKER_TOPIC: topic})

    def describe_configs(self, resources: Iterable[Any]) -> dict[Any, Future[Any]]:
        return {one: self._answer({}) for one in resources}

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        return {name: self._answer(NOTHING) for name in ("t", MARKER_TOPIC)}

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return self._answer(NOTHING)

    def poll(self, seconds: float) -> None:
        pass

    def _answer(self, nothing: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(nothing) if self._why is None else answer.set_exception(self._why())
        return answer


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Clients are of a cluster that answers so."""

    def set_up(why: Callable[[], Exception] | None) -> None:
        monkeypatch.setattr(confluent_kafka.admin, "AdminClient", Untold(why))

    # Tried with clients of their own.
    tried = answered("Does it?", True, yes="Yes.")
    monkeypatch.setattr(probing, "_transactions", lambda *_: tried)
    monkeypatch.setattr(probing, "probe_held", lambda *_: [tried])
    return set_up


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (refused, {"Broker: Topic authorization failed."}),
        (unsupported, {"Local: Required feature not supported by broker."}),
        (
            None,
            {
                "The broker does not say.",
                "The broker does not say what cleanup.policy is.",
                "The broker does not say what min.insync.replicas is.",
                "The broker does not say what transaction.max.timeout.ms, "
                "transaction.state.log.replication.factor, transaction.state.log.min.isr is.",
            },
        ),
    ],
    ids=["refused", "unsupported", "nothing"],
)
def test_a_probe_says_of_each_question_why_it_is_open(
    answers: Any, why: Any, words: set[str]
) -> None:
    answers(why)
    found = probing.probe(CLUSTER, timedelta(seconds=1), "t")
    open_ = [one for one in found if one.verdict is Verdict.UNKNOWN]
    assert len(open_) == 4 and len(found) == 6, "what was tried has its answers"
    assert {one.meaning.removeprefix("It is there. ") for one in open_} == words


def moving() -> Exception:
    return KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))


def unknown() -> Exception:
    return KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))


@pytest.mark.parametrize("why", [refused, unsupported, None])
def test_a_probe_of_a_cluster_without_the_marker_topic(
    answers: Any, monkeypatch: pytest.MonkeyPatch, why: Any
) -> None:
    answers(why)
    monkeypatch.setattr(probing, "MARKER_TOPIC", "not-there")
    [markers] = [one for one in probing.probe(CLUSTER, timedelta(1)) if "not-there" in one.question]
    assert markers.verdict is Verdict.UNKNOWN
    assert markers.meaning.startswith("It is not there, and whether the user may create it is not")


def test_a_probe_of_a_cluster_that_falls_silent_ends_in_a_sentence(answers: Any) -> None:
    answers(silent)
    with pytest.raises(SourceUnavailableError, match=r"^a:9092 cannot be reached\.$"):
        probing.probe(CLUSTER, timedelta(seconds=1), "t")


def test_a_start_takes_a_cluster_that_cannot_tell_rights_at_its_word(answers: Any) -> None:
    for why in (unsupported, None):
        answers(why)
        rights.check_rights(CLUSTER, {"t": ("READ",)}, "j", "s")
    answers(refused)
    with pytest.raises(
        ConfigurationError, match=r"this user may not: Broker: Topic authorization failed"
    ):
        rights.check_rights(CLUSTER, {"t": ("READ",)}, "j", "s")


def test_a_topic_that_one_broker_does_not_know_yet_is_no_lack_of_rights(answers: Any) -> None:
    answers(unknown)
    with pytest.raises(SourceUnavailableError, match="Unknown topic"):
        rights.check_rights(CLUSTER, {"t": ("READ",)}, "j", "s")


def test_limits_that_cannot_be_read_now_are_not_taken_for_none(answers: Any) -> None:
    """Failed before: an execution that began in an outage checked no message."""
    for why in (refused, unsupported):
        answers(why)
        assert TopicLimits.of(CLUSTER, "t", 1) == TopicLimits("t", 1)
    for why in (silent, unknown):
        answers(why)
        with pytest.raises(SinkUnavailableError, match="cannot be read"):
            TopicLimits.of(CLUSTER, "t", 1)


class Moving(Untold):
    """The first clients ask a broker that does not lead the partition, or not yet."""

    def __init__(self, refusals: int) -> None:
        super().__init__(None)
        self.clients, self._refusals = 0, refusals

    def __call__(self, settings: Any) -> Moving:
        self.clients += 1
        return self

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        self._why = None
        return super().describe_topics(topics)

    def list_offsets(self, asked: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self._why = moving if self.clients <= self._refusals else None
        return {place: self._answer(SimpleNamespace(offset=7)) for place in asked}


def test_a_leader_that_moves_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new client is asked, which does not remember the old leader. Failed before:
    NOT_LEADER_FOR_PARTITION right after a topic was created."""
    clients = Moving(2)
    monkeypatch.setattr(confluent_kafka.admin, "AdminClient", clients)
    admin = Administration(CLUSTER)
    assert admin.ends("t", [0, 1]) == {0: 7, 1: 7} and clients.clients == 3
    assert admin.ends("t", [0]) == {0: 7} and clients.clients == 3, "a good client is kept"
    offsets, clients.clients = Offsets(CLUSTER, Topics(("t",)), "j", "s"), 1
    with pytest.raises(SourceUnavailableError, match="leader"):
        offsets.first_and_last([Partition("t", 0)])
    there = {Partition("t", 0): 7}
    assert offsets.first_and_last([Partition("t", 0)]) == (there, there), (
        "the next poll has a new one"
    )


@pytest.mark.parametrize(
    ("why", "kind", "words"),
    [
        (refused, ConfigurationError, "cannot be read: Broker: Topic authorization failed."),
        (unsupported, ConfigurationError, "cannot be read: Local: Required feature not"),
        (silent, SourceUnavailableError, "the cluster cannot be reached."),
        (unknown, SourceUnavailableError, "the cluster cannot be reached: Broker: Unknown topic"),
        (
            None,
            ConfigurationError,
            "has cleanup.policy=unknown: the cluster may delete its messages.",
        ),
    ],
    ids=["refused", "unsupported", "silent", "unknown", "nothing"],
)
def test_a_start_says_why_a_marker_topic_is_not_good(
    answers: Any, why: Any, kind: type[Exception], words: str
) -> None:
    answers(why)
    with pytest.raises(kind) as raised:
        check_marker_topic(CLUSTER, MARKER_TOPIC, "j", "s")
    assert words in str(raised.value)


def test_ids_of_topics_that_nobody_tells(answers: Any) -> None:
    """A reader asks for them whenever something is new: they are a safeguard, not a need."""
    answers(unsupported)
    assert Offsets(CLUSTER, Topics(("t",)), "j", "s").topic_ids(["t"]) == {}
    for why, kind, words in (
        (
            refused,
            SourceError,
            "the cluster refuses the request: Broker: Topic authorization failed.",
        ),
        (silent, SourceUnavailableError, "the cluster cannot be reached: it does not answer."),
    ):
        answers(why)
        with pytest.raises(kind) as raised:
            Offsets(CLUSTER, Topics(("t",)), "j", "s").topic_ids(["t"])
        assert words in str(raised.value)
