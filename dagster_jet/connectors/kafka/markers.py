"""Which epochs are committed: markers in a compacted topic, written with the messages themselves.

A marker's key is (store, namespace, job, sink, timeline), its value the last epoch and the
execution that has committed it. Markers of all jobs are in one topic.

Those of held transactions are in another one: they are open for longer, and who reads markers waits
for those that are open.
"""

from __future__ import annotations

import concurrent.futures
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    Troubles,
    admin_library,
    answered,
    client_library,
    error_of,
    is_lasting,
    is_refusal,
    said,
)
from dagster_jet.errors import ConfigurationError, SourceUnavailableError

MARKER_TOPIC = "dagster-jet-markers"
HELD_SUFFIX = "-held"
"""Of the topic's name, for markers of held transactions."""
MARKER_RIGHTS = "READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS"
_PARTITIONS = 8
_SILENCE_S = 10.0
_CALL_S = 10.0
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Marker:
    """What is committed. `execution_id` is 0 unless epochs may come again (`repeatable`)."""

    epoch_id: int
    execution_id: int
    by_execution: int
    """Who has committed it."""

    def value(self) -> bytes:
        content = {"epoch": self.epoch_id, "execution": self.execution_id, "by": self.by_execution}
        return json.dumps(content).encode()

    @classmethod
    def of(cls, value: bytes) -> Marker:
        content = json.loads(value)
        return cls(content["epoch"], content["execution"], content["by"])

    def is_after(self, other: Marker) -> bool:
        """Who commits is never older than who has committed before."""
        return (self.by_execution, self.epoch_id) > (other.by_execution, other.epoch_id)

    def covers(self, epoch_id: int, execution_id: int) -> bool:
        return self.execution_id == execution_id and self.epoch_id >= epoch_id

    def reaches(self, execution_id: int, epoch_id: int) -> bool:
        """Of a held transaction: each has the execution that has written it, and is committed
        before its successors."""
        return (self.execution_id, self.epoch_id) >= (execution_id, epoch_id)


@dataclass(frozen=True)
class Owner:
    """Whose markers they are. Two stores, or namespaces, may have jobs of one name."""

    store: str
    namespace: str
    job: str
    sink: str
    part: str = ""
    """Of the sink, that has transactions of its own: a held id."""

    def key(self, timeline: int) -> bytes:
        return json.dumps([*self.as_list(), timeline]).encode()

    def as_list(self) -> list[str]:
        part = [self.part] if self.part else []
        return [self.store, self.namespace, self.job, self.sink, *part]

    def owns(self, key: bytes) -> bool:
        """Whether a marker's key is of the sink, or of a part of it."""
        mine = replace(self, part="").as_list()
        return bool(json.loads(key)[: len(mine)] == mine)

    @property
    def transactional_id(self) -> str:
        return "/".join(["dagster_jet", *self.as_list()])


def partition_of(key: bytes, count: int) -> int:
    return int(xxhash.xxh3_64_intdigest(key) % count)


def read_markers(cluster: Cluster, topic: str, owner: Owner) -> dict[int, Marker]:
    """By timeline, the newest marker of a sink; by a producer that has just fenced all others.

    It reads up to what is there now, open transactions included, and waits until these are decided:
    those of other jobs hold back what `read_committed` shows, ours too.

    Raises:
        KafkaException: nobody answers.
        TimeoutError: a transaction of another job stays open, or the topic is not there.
    """
    return newest_of(_all_messages(cluster, topic), owner)


def newest_of(messages: Iterable[Any], owner: Owner) -> dict[int, Marker]:
    """By timeline, the newest marker of a sink among messages of the marker topic."""
    newest: dict[int, Marker] = {}
    for message in messages:
        *of, timeline = json.loads(message.key())
        if of != owner.as_list() or message.value() is None:
            continue
        marker, before = Marker.of(message.value()), newest.get(timeline)
        # Where the topic has got more partitions, an old one may stand in another, and be read
        # later.
        if before is None or marker.is_after(before):
            newest[timeline] = marker
    return newest


def has_markers(cluster: Cluster, topic: str, owner: Owner) -> bool:
    """Whether there is any of a sink or its parts. Raises as `read_markers`."""
    return any(owner.owns(message.key()) for message in _all_messages(cluster, topic))


def is_visible(
    cluster: Cluster, topic: str, owner: Owner, timeline: int, marker: Marker, at: tuple[int, int]
) -> bool:
    """Whether a marker was committed that was written to (partition, offset), or one after it.

    It waits until everything up to there is decided, and for nothing behind it.

    Raises:
        KafkaException: nobody answers.
        TimeoutError: a transaction that is older stays open.
    """
    key, (partition, offset) = owner.key(timeline), at
    for message in _messages(cluster, topic, {partition: offset}, {partition: offset + 1}):
        is_ours = message.key() == key and message.value() is not None
        if is_ours and Marker.of(message.value()).reaches(marker.execution_id, marker.epoch_id):
            return True
    return False


def _all_messages(cluster: Cluster, topic: str) -> Iterator[Any]:
    admin = admin_library().AdminClient(cluster.settings(error_cb=Troubles()))
    ends = _ends(admin, topic, marker_partitions(admin, topic))
    yield from _messages(cluster, topic, dict.fromkeys(ends, 0), ends)


def _messages(
    cluster: Cluster, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Any]:
    """What is committed, by partition, until all before the end is decided; perhaps more."""
    library = client_library()
    code = library.KafkaError
    settings = cluster.settings(
        **{
            "group.id": f"dagster_jet.{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
            "error_cb": Troubles(),
        }
    )
    left = dict(ends)
    consumer = library.Consumer(settings)
    try:
        consumer.assign([library.TopicPartition(topic, *start) for start in starts.items()])
        heard = time.monotonic()
        while left:
            message = consumer.poll(0.1)
            if message is None:
                if time.monotonic() - heard > _SILENCE_S:
                    raise TimeoutError(
                        f"the topic {topic} cannot be read to its end: the cluster does not "
                        "answer, or a transaction of another job stays open"
                    )
                continue
            error = message.error()
            if error is None:
                heard = time.monotonic()
                yield message
            elif error.code() == code._PARTITION_EOF:
                if message.offset() >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
            elif is_lasting(error):
                raise library.KafkaException(error)
    finally:
        consumer.close()


def marker_partitions(client: Any, topic: str) -> list[int]:
    """Raises `TimeoutError`: it is not there now. No partition would mean that nothing is
    committed."""
    found = client.list_topics(topic, timeout=_CALL_S).topics.get(topic)
    if found is None or found.error is not None or not found.partitions:
        why = "" if found is None or found.error is None else f": {said(found.error)}"
        raise TimeoutError(f"the topic {topic} is not there{why}")
    return list(found.partitions)


def _ends(admin: Any, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Also of what is not decided. Partitions without anything are left out."""
    library, administration = client_library(), admin_library()
    asked = {
        library.TopicPartition(topic, number): administration.OffsetSpec.latest()
        for number in partitions
    }
    uncommitted = library.IsolationLevel.READ_UNCOMMITTED
    futures = admin.list_offsets(asked, isolation_level=uncommitted, request_timeout=_CALL_S)
    ends = {
        one.partition: answered(future.result(_CALL_S).offset) for one, future in futures.items()
    }
    return {number: end for number, end in ends.items() if end > 0}


def _await_topic(admin: Any, topic: str) -> None:
    """Brokers hear of a topic a little later than the one that has made it, and lead it later yet.

    Raises:
        TimeoutError: none has heard of it.
    """
    asked = client_library().TopicCollection([topic])
    began = time.monotonic()
    while True:
        try:
            admin.describe_topics(asked, request_timeout=_CALL_S)[topic].result(_CALL_S)
            _ends(admin, topic, range(_PARTITIONS))
            return
        except client_library().KafkaException as error:
            raised = error_of(error)
            if raised is not None and is_refusal(raised):
                return  # who checks the rights says so
            if time.monotonic() - began > _CALL_S:
                raise TimeoutError from None
            time.sleep(_PAUSE_S)


def check_marker_topic(cluster: Cluster, topic: str, job: str, stage: str) -> None:
    """Creates it if it is not there.

    Raises:
        SourceUnavailableError: nobody answers.
        ConfigurationError: it cannot be created, or its messages do not stay.
    """
    library, administration = client_library(), admin_library()
    code = library.KafkaError
    troubles = Troubles()
    admin = administration.AdminClient(cluster.settings(error_cb=troubles))
    try:
        known = admin.list_topics(timeout=_CALL_S)
        if topic not in known.topics:
            replicas = min(3, len(known.brokers))
            wanted = administration.NewTopic(
                topic, _PARTITIONS, replicas, config={"cleanup.policy": "compact"}
            )
            try:
                admin.create_topics([wanted])[topic].result(_CALL_S)
            except library.KafkaException as error:
                raised = error_of(error)
                if raised is None or raised.code() != code.TOPIC_ALREADY_EXISTS:
                    raise ConfigurationError(
                        f"the topic {topic!r}, which says what is committed, is not there for us, "
                        f"and cannot be created: {said(raised) if raised else error}.",
                        job=job,
                        stage=stage,
                        cure=f"Create it with cleanup.policy=compact and {_PARTITIONS} partitions, "
                        f"grant {MARKER_RIGHTS} on it, or name another: "
                        "sinks.kafka(marker_topic=...).",
                    ) from None
            _await_topic(admin, topic)
            return
        resource = administration.ConfigResource(administration.ResourceType.TOPIC, topic)
        described = admin.describe_configs([resource])[resource].result(_CALL_S)
    except library.KafkaException as error:
        admin.poll(0)
        raised = error_of(error)
        explained = None if raised is None else troubles.explain(raised)
        if explained is not None and is_lasting(explained):
            raise ConfigurationError(
                f"the topic {topic!r}, which says what is committed, cannot be looked at: "
                f"{said(explained)}.",
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
            f"the topic {topic!r}, which says what is committed, has cleanup.policy={policy}: its "
            "messages may not stay.",
            job=job,
            stage=stage,
            cure="Set it to compact.",
        )
