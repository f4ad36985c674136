"""Compacted topic of markers. A start checks it, and creates it where its sink may write."""

from __future__ import annotations

import concurrent.futures
import time

from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    admin_library,
    client_library,
    error_of,
    is_lasting,
    is_refusal,
    is_unknown_topic,
    said,
)
from dagster_jet.connectors.kafka.markers import PARTITIONS
from dagster_jet.errors import ConfigurationError, SourceUnavailableError

MARKER_RIGHTS = "READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS"
SETTINGS = {
    "cleanup.policy": "compact",
    # Every start reads a partition from its beginning. Compaction skips the newest segment, which
    # by default stays open for a week.
    "segment.ms": "600000",
    "max.compaction.lag.ms": "1800000",
    "delete.retention.ms": "1800000",
}
"""Settings of the topics that we create."""
_SHOWN = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
_CALL_S = 10.0
_PAUSE_S = 0.05


def _await_topic(admin: Administration, topic: str) -> None:
    """Waits until brokers know a new topic and lead its partitions. Raises the last error."""
    library = client_library()
    asked = library.TopicCollection([topic])
    began = time.monotonic()
    while True:
        try:
            described = admin.call(
                lambda client: client.describe_topics(asked, request_timeout=_CALL_S)[topic].result(
                    _CALL_S
                )
            )
            is_led = all(partition.leader is not None for partition in described.partitions)
            # The client looks for leaders that there are not again after 3 s.
            if is_led or time.monotonic() - began > _CALL_S:
                admin.ends(topic, range(PARTITIONS))
                return
            time.sleep(_PAUSE_S)
        except library.KafkaException as error:
            raised = error_of(error)
            if raised is not None and is_refusal(raised):
                return  # the check of permissions reports it
            if time.monotonic() - began > _CALL_S:
                raise
            time.sleep(_PAUSE_S)


def is_there(cluster: Cluster, topic: str) -> bool:
    """Whether the cluster has the topic. Raises `KafkaException` if it does not answer."""
    known = Administration(cluster).call(lambda client: client.list_topics(timeout=_CALL_S))
    return topic in known.topics


def check_marker_topic(
    cluster: Cluster, topic: str, job: str, stage: str, *, creates: bool = True
) -> bool:
    """Checks the topic; returns whether it exists.

    Args:
        creates: if it does not exist, it is created.

    Raises:
        SourceUnavailableError: the cluster does not answer.
        ConfigurationError: it cannot be created, or does not keep its messages.
    """
    library, administration = client_library(), admin_library()
    code = library.KafkaError
    admin = Administration(cluster)
    try:
        known = admin.call(lambda client: client.list_topics(timeout=_CALL_S))
        if topic not in known.topics and not creates:
            return False
        if topic not in known.topics:
            replicas = min(3, len(known.brokers))
            wanted = administration.NewTopic(topic, PARTITIONS, replicas, config=SETTINGS)
            try:
                admin.call(lambda client: client.create_topics([wanted])[topic].result(_CALL_S))
            except library.KafkaException as error:
                raised = error_of(error)
                if raised is not None and is_lasting(raised):
                    raise ConfigurationError(
                        f"the marker topic {topic!r} does not exist or this user may not see it, "
                        f"and it cannot be created: {said(raised)}.",
                        job=job,
                        stage=stage,
                        cure=f"Create it with {PARTITIONS} partitions and the settings {_SHOWN}, "
                        f"grant {MARKER_RIGHTS} on it, or name another: "
                        "sinks.kafka(marker_topic=...).",
                    ) from None
                if raised is None or raised.code() != code.TOPIC_ALREADY_EXISTS:
                    raise  # the cluster cannot create it now
            _await_topic(admin, topic)
            return True
        resource = administration.ConfigResource(administration.ResourceType.TOPIC, topic)
        described = admin.call(
            lambda client: client.describe_configs([resource])[resource].result(_CALL_S)
        )
    except library.KafkaException as error:
        raised = error_of(error)
        explained = None if raised is None else admin.last_error.explain(raised)
        # The topic was listed: a broker that does not know it hears of it soon.
        if explained is not None and is_lasting(explained) and not is_unknown_topic(explained):
            raise ConfigurationError(
                f"the settings of the marker topic {topic!r} cannot be read: {said(explained)}.",
                job=job,
                stage=stage,
                cure=f"Grant {MARKER_RIGHTS} on it.",
            ) from None
        raise SourceUnavailableError(
            f"the cluster cannot be reached: {error if explained is None else said(explained)}."
        ) from None
    except (TimeoutError, concurrent.futures.TimeoutError):
        raise SourceUnavailableError("the cluster cannot be reached.") from None
    entry = described.get("cleanup.policy")
    policy = "unknown" if entry is None else entry.value
    if policy != "compact":
        raise ConfigurationError(
            f"the marker topic {topic!r} has cleanup.policy={policy}: the cluster may delete its "
            "messages.",
            job=job,
            stage=stage,
            cure="Set it to compact.",
        )
    if 0 < (count := len(known.topics[topic].partitions)) < PARTITIONS:
        raise ConfigurationError(
            f"the marker topic {topic!r} has {count} partitions, and markers need {PARTITIONS}.",
            job=job,
            stage=stage,
            cure=f"Add partitions, up to {PARTITIONS} or more.",
        )
    return True
