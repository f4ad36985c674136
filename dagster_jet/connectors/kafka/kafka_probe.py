"""Probes whether a Kafka cluster supports exactly-once, by its settings and a transaction.

It leaves the transactional id `dagster-jet-probe`, which brokers forget after a week.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    LastError,
    admin_library,
    client_library,
    error_of,
    is_lasting,
    said,
)
from dagster_jet.connectors.kafka.marker_topic import MARKER_RIGHTS
from dagster_jet.connectors.kafka.markers import MARKER_TOPIC
from dagster_jet.connectors.kafka.probe_held import find as find_held
from dagster_jet.connectors.kafka.probe_held import leave as leave_held
from dagster_jet.connectors.kafka.probe_held import probe_held
from dagster_jet.connectors.kafka.transactions import TRANSACTION_MAX_S
from dagster_jet.core.answers import Answer, answered, in_words
from dagster_jet.core.secret import shown
from dagster_jet.errors import ConfigurationError, JetError, SourceUnavailableError

_CALL_S = 10.0
_TRANSACTIONAL_ID = "dagster-jet-probe"
_MANY = 3
_SILENT = "The broker does not say."


def probe(cluster: Cluster, interval: timedelta, topic: str | None = None) -> list[Answer]:
    """Returns all answers about the cluster.

    Args:
        topic: a topic that a job reads or writes.

    Raises:
        JetError: the cluster cannot be reached, refuses access, or has no such topic.
    """
    last_error = LastError()
    admin = admin_library().AdminClient(cluster.settings(error_cb=last_error))
    with _errors_in_words(cluster, admin, last_error):
        known = admin.list_topics(timeout=_CALL_S)
        if topic is not None and topic not in known.topics:
            raise ConfigurationError(f"{shown(cluster.servers)} has no topic {topic!r} for us.")
        if not known.brokers:
            raise SourceUnavailableError(f"{shown(cluster.servers)} has no broker now.")
        answers = [
            _transactions(cluster, last_error),
            _markers(admin, MARKER_TOPIC in known.topics),
            *([] if topic is None else [_rights(admin, topic)]),
            *_of_broker(admin, next(iter(known.brokers)), interval),
            *probe_held(cluster),
        ]
    if topic is not None:
        with _errors_in_words(cluster, admin, last_error):
            answers.append(_keeps_topic(admin, known, topic))
    return answers


def leave(cluster: Cluster) -> str:
    """Leaves a held transaction behind, and returns its name for `find`. Raises `JetError`."""
    with _troubles_in_words(cluster):
        return leave_held(cluster)


def find(cluster: Cluster, name: str) -> list[Answer]:
    """Checks whether the transaction of `leave` still exists; removes it. Raises `JetError`."""
    with _troubles_in_words(cluster):
        return find_held(cluster, name)


@contextlib.contextmanager
def _troubles_in_words(cluster: Cluster) -> Iterator[None]:
    last_error = LastError()
    admin = admin_library().AdminClient(cluster.settings(error_cb=last_error))
    with _errors_in_words(cluster, admin, last_error):
        yield


def _transactions(cluster: Cluster, last_error: LastError) -> Answer:
    """Begins a transaction and aborts it."""
    library = client_library()
    more = {"transactional.id": _TRANSACTIONAL_ID, "error_cb": last_error}
    producer = library.Producer(
        {"transaction.timeout.ms": TRANSACTION_MAX_S * 1000, **cluster.settings(**more)}
    )
    refused = ""
    try:
        producer.init_transactions(_CALL_S)
        producer.begin_transaction()
        producer.abort_transaction(_CALL_S)
    except library.KafkaException as error:
        raised = error_of(error)
        explained = None if raised is None else last_error.explain(raised)
        if explained is None or not is_lasting(explained):
            raise
        refused = said(explained)
    return answered(
        "Does it carry out transactions for this user?",
        not refused,
        yes="One was begun and given up.",
        no=f"{refused}.",
        cure="Grant WRITE and DESCRIBE on transactional ids that begin with dagster-jet, and raise "
        f"transaction.max.timeout.ms to {TRANSACTION_MAX_S * 1000} or more.",
        needed=True,
    )


def _markers(admin: Any, is_there: bool) -> Answer:
    question = f"Can the topic {MARKER_TOPIC} say what is committed?"
    if is_there:
        settings, unanswered = _settings(admin, "TOPIC", MARKER_TOPIC, "cleanup.policy")
        policy = settings.get("cleanup.policy")
        return answered(
            question,
            None if unanswered else policy == "compact",
            yes="It is there, and compacted.",
            no=f"Its cleanup.policy is {policy}: its messages do not stay.",
            unknown=f"It is there. {unanswered}",
            cure=f"Grant {MARKER_RIGHTS} on it." if unanswered else "Set it to compact.",
            needed=True,
        )
    cluster, unanswered = _answer_of(
        admin.describe_cluster(include_authorized_operations=True, request_timeout=_CALL_S)
    )
    operations = None if cluster is None else cluster.authorized_operations
    may_create = None if operations is None else "CREATE" in {one.name for one in operations}
    return answered(
        question,
        may_create,
        yes="It is not there; the first job creates it.",
        no="It is not there, and the user may not create it.",
        unknown="It is not there, and whether the user may create it is not known. "
        f"{unanswered or _SILENT}",
        cure=f"Create it with cleanup.policy=compact, and grant {MARKER_RIGHTS} on it.",
        needed=True,
    )


def _rights(admin: Any, topic: str) -> Answer:
    asked = client_library().TopicCollection([topic])
    described, unanswered = _answer_of(
        admin.describe_topics(asked, include_authorized_operations=True, request_timeout=_CALL_S)[
            topic
        ]
    )
    operations = None if described is None else described.authorized_operations
    names = None if operations is None else {one.name for one in operations}
    rights = ", ".join(right for right in ("READ", "WRITE") if names and right in names)
    return answered(
        f"May the user read or write {topic}?",
        None if names is None else bool(rights),
        yes=f"{rights}.",
        no="Neither.",
        unknown=unanswered or _SILENT,
        cure="Grant READ for a source, WRITE for a sink.",
        needed=True,
    )


def _answer_of(answer: Any) -> tuple[Any, str]:
    """Returns the cluster's answer; or None and the reason: no permission, or no such call.

    Raises:
        KafkaException, TimeoutError: temporarily unavailable.
    """
    try:
        return answer.result(_CALL_S), ""
    except client_library().KafkaException as error:
        raised = error_of(error)
        if raised is None or not is_lasting(raised):
            raise
        return None, f"{said(raised)}."


def _settings(admin: Any, kind: str, name: str, *needed: str) -> tuple[Mapping[str, str], str]:
    """Settings of a broker or topic, and a reason if any of `needed` is missing. Raises as
    `_answer_of`."""
    administration = admin_library()
    resource = administration.ConfigResource(administration.ResourceType[kind], name)
    described, unanswered = _answer_of(admin.describe_configs([resource])[resource])
    settings = {one: entry.value for one, entry in (described or {}).items()}
    missing = [one for one in needed if settings.get(one) is None]
    if missing and not unanswered:
        unanswered = f"The broker does not say what {', '.join(missing)} is."
    return settings, unanswered


def _of_broker(admin: Any, broker: int, interval: timedelta) -> list[Answer]:
    settings, unanswered = _settings(
        admin,
        "BROKER",
        str(broker),
        "transaction.max.timeout.ms",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    )
    if unanswered:
        return [
            answered(
                "Are the brokers' settings right?",
                None,
                unknown=unanswered,
                cure="Grant DESCRIBE_CONFIGS on the cluster, or probe as an administrator.",
            )
        ]
    longest = timedelta(milliseconds=int(settings["transaction.max.timeout.ms"]))
    replicas = int(settings["transaction.state.log.replication.factor"])
    in_sync = int(settings["transaction.state.log.min.isr"])
    is_unclean = settings.get("unclean.leader.election.enable") == "true"
    return [
        answered(
            "May a transaction last as long as a commit asks for?",
            longest >= timedelta(seconds=TRANSACTION_MAX_S),
            yes=f"transaction.max.timeout.ms is {in_words(longest)}, and a commit asks for up to "
            f"{TRANSACTION_MAX_S} s.",
            no=f"transaction.max.timeout.ms is {in_words(longest)}, and a commit asks for up to "
            f"{TRANSACTION_MAX_S} s.",
            cure='Raise it, or ask for less: options={"transaction.timeout.ms": "..."}.',
            needed=True,
        ),
        answered(
            "Are its time-outs longer than the snapshot interval?",
            longest > interval,
            yes=f"transaction.max.timeout.ms is {in_words(longest)}.",
            no=f"transaction.max.timeout.ms is {in_words(longest)}, the interval "
            f"{in_words(interval)}. By default a transaction lasts as long as its commit only.",
            cure="Raise it, or take snapshots more often, before transactions are held.",
        ),
        answered(
            "Does it keep what is committed when leaders change?",
            not is_unclean,
            yes="unclean.leader.election.enable is off.",
            no="unclean.leader.election.enable is on: a broker that was behind may lead, and what "
            "it does not have is lost.",
            cure="Turn it off.",
            needed=True,
        ),
        answered(
            "Does it keep transactions when a broker is lost?",
            replicas >= _MANY and in_sync > 1,
            yes=f"{replicas} replicas, {in_sync} of them in sync.",
            no=f"transaction.state.log.replication.factor is {replicas}, min.isr {in_sync}: they "
            "survive a restart, not the loss of a disk.",
            cure="Use 3 and 2, on three brokers.",
        ),
    ]


def _keeps_topic(admin: Any, known: Any, topic: str) -> Answer:
    partitions = known.topics[topic].partitions.values()
    replicas = min((len(one.replicas) for one in partitions), default=0)
    settings, unanswered = _settings(admin, "TOPIC", topic, "min.insync.replicas")
    in_sync = int(settings.get("min.insync.replicas", 0))
    return answered(
        f"Does it keep messages of {topic} when a broker is lost?",
        None if unanswered else replicas >= _MANY and in_sync > 1,
        yes=f"{replicas} replicas, {in_sync} of them in sync.",
        no=f"{replicas} replicas, min.insync.replicas {in_sync}.",
        unknown=unanswered,
        cure="" if unanswered else "Use 3 and 2, on three brokers.",
    )


@contextlib.contextmanager
def _errors_in_words(cluster: Cluster, admin: Any, last_error: LastError) -> Iterator[None]:
    library, place = client_library(), shown(cluster.servers)
    try:
        yield
    except library.KafkaException as error:
        admin.poll(0)
        raised = error_of(error)
        explained = None if raised is None else last_error.explain(raised)
        why = error if explained is None else said(explained)
        if explained is None or not is_lasting(explained):
            raise SourceUnavailableError(f"{place} cannot be reached: {why}.") from None
        raise JetError(
            f"{place} refuses us: {why}.", cure="Correct the credentials or the rights: --option."
        ) from None
    except (TimeoutError, concurrent.futures.TimeoutError):
        raise SourceUnavailableError(f"{place} cannot be reached.") from None
