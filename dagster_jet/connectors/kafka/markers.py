"""Which epochs are committed: markers in a compacted topic, written with the messages themselves.

A marker's key is (store, namespace, job, sink, timeline), its value the last epoch and the
execution that has committed it. Markers of all jobs are in one topic.

Those of held transactions are in another one: they are open for longer, and who reads markers waits
for those that are open.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
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
    said,
)

MARKER_TOPIC = "dagster-jet-markers"
HELD_SUFFIX = "-held"
"""Of the topic's name, for markers of held transactions."""
PARTITIONS = 32
"""A sink's markers are in one of them; who reads it waits for transactions that are open there."""
_SILENCE_S = 10.0
_CALL_S = 10.0


@dataclass(frozen=True)
class Marker:
    """What is committed. `execution_id` is 0 unless epochs may come again (`repeatable`)."""

    epoch_id: int
    execution_id: int
    by_execution: int
    """Who has committed it."""
    topic_id: str = ""
    """Of the topic with the messages, as of the start of who has committed it; empty: not known."""
    refused: str = ""
    """A memo of rows that it was committed without, until they are delivered (`RefusedRows`)."""

    def value(self) -> bytes:
        content = {"epoch": self.epoch_id, "execution": self.execution_id, "by": self.by_execution}
        more = {"topic": self.topic_id, "refused": self.refused}
        return json.dumps({**content, **{k: v for k, v in more.items() if v}}).encode()

    @classmethod
    def of(cls, value: bytes) -> Marker:
        content = json.loads(value)
        more = content.get("topic", ""), content.get("refused", "")
        return cls(content["epoch"], content["execution"], content["by"], *more)

    def supersedes(self, other: Marker) -> bool:
        """As the later one of the two: who commits is never older than who did before, and may
        write a marker once more, without its memo."""
        return (self.by_execution, self.epoch_id) >= (other.by_execution, other.epoch_id)

    def is_of(self, topic_id: str) -> bool:
        """Whether its messages are in this topic, or nobody knows."""
        return not (self.topic_id and topic_id) or self.topic_id == topic_id

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

    @property
    def partition(self) -> int:
        """Of a marker topic, for all timelines and parts of the sink. It does not depend on how
        many the topic has: that may grow."""
        whole = json.dumps(replace(self, part="").as_list()).encode()
        return int(xxhash.xxh3_64_intdigest(whole) % PARTITIONS)

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


def read_markers(cluster: Cluster, topic: str, owner: Owner) -> dict[int, Marker]:
    """By timeline, the newest marker of a sink: see `MarkerReader.newest`, which it raises as."""
    reader = MarkerReader(cluster, topic, owner)
    try:
        return reader.newest()
    finally:
        reader.close()


@dataclass
class MarkerReader:
    """Reads the markers of one sink again and again, each message once.

    Only the sink's partition is read: a transaction of another sink that stays open in another
    partition keeps nobody waiting.
    """

    cluster: Cluster
    topic: str
    owner: Owner
    _newest: dict[int, Marker] = field(default_factory=dict)
    _read_to: int = 0
    _admin: Any = None

    def newest(self) -> dict[int, Marker]:
        """By timeline, the newest marker; for a producer that has just fenced all others off.

        It reads up to what is there now, open transactions included, and waits until these are
        decided: those of sinks in the same partition hold back what `read_committed` shows.

        Raises:
            KafkaException: nobody answers.
            TimeoutError: a transaction of another sink stays open, or the topic is not there.
        """
        partition = self.owner.partition
        end = self._end(partition)
        if end < self._read_to:  # the topic was made anew
            self._newest, self._read_to = {}, 0
        if end > self._read_to:
            place = Place(self.topic, partition, self._read_to, end)
            for message in _messages(self.cluster, place):
                self._take(message)
                self._read_to = message.offset() + 1
            self._read_to = max(self._read_to, end)
        return dict(self._newest)

    def close(self) -> None:
        self._admin = None

    def _end(self, partition: int) -> int:
        """As the function of this name, with the client of the call before.

        After an error the next call has a new client. librdkafka's administration keeps the leader
        epoch of a partition until its metadata is five minutes old: a broker that has come back
        refuses each question until then (FENCED_LEADER_EPOCH).
        """
        admin, self._admin = self._admin, None
        if admin is None:
            admin = admin_library().AdminClient(self.cluster.settings(error_cb=Troubles()))
        end = _end(admin, self.topic, partition)
        self._admin = admin
        return end

    def _take(self, message: Any) -> None:
        *of, timeline = json.loads(message.key())
        if of != self.owner.as_list() or message.value() is None:
            return
        marker, before = Marker.of(message.value()), self._newest.get(timeline)
        if before is None or marker.supersedes(before):
            self._newest[timeline] = marker


@dataclass(frozen=True)
class Place:
    """Messages of one partition, from an offset up to another."""

    topic: str
    partition: int
    start: int
    end: int


def has_markers(cluster: Cluster, topic: str, owner: Owner) -> bool:
    """Whether there is any of a sink or its parts. Raises as `read_markers`."""
    admin = admin_library().AdminClient(cluster.settings(error_cb=Troubles()))
    place = Place(topic, owner.partition, 0, _end(admin, topic, owner.partition))
    return place.end > 0 and any(owner.owns(message.key()) for message in _messages(cluster, place))


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
    for message in _messages(cluster, Place(topic, partition, offset, offset + 1)):
        is_ours = message.key() == key and message.value() is not None
        if is_ours and Marker.of(message.value()).reaches(marker.execution_id, marker.epoch_id):
            return True
    return False


def _messages(cluster: Cluster, place: Place) -> Iterator[Any]:
    """What is committed, until all before the end is decided; perhaps more."""
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
    consumer = library.Consumer(settings)
    try:
        consumer.assign([library.TopicPartition(place.topic, place.partition, place.start)])
        heard = time.monotonic()
        while True:
            message = consumer.poll(0.1)
            if message is None:
                if time.monotonic() - heard > _SILENCE_S:
                    raise TimeoutError(
                        f"the topic {place.topic}, partition {place.partition}, cannot be read to "
                        "its end: the cluster does not answer, or a transaction of another job "
                        "stays open there"
                    )
                continue
            error = message.error()
            if error is None:
                heard = time.monotonic()
                yield message
            elif error.code() == code._PARTITION_EOF:
                if message.offset() >= place.end:
                    return
            elif is_lasting(error):
                raise library.KafkaException(error)
    finally:
        consumer.close()


def _end(admin: Any, topic: str, partition: int) -> int:
    """Where the partition ends, what is not decided included.

    Raises:
        KafkaException: nobody answers.
        TimeoutError: it is not there now. No end would mean that nothing is committed.
    """
    library = client_library()
    try:
        return ends(admin, topic, [partition])[partition]
    except library.KafkaException as error:
        raised = error_of(error)
        if raised is None or raised.code() not in (
            library.KafkaError.UNKNOWN_TOPIC_OR_PART,
            library.KafkaError._UNKNOWN_PARTITION,
        ):
            raise
        raise TimeoutError(f"the topic {topic} is not there: {said(raised)}") from None


def ends(admin: Any, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Where partitions end, what is not decided included."""
    library, administration = client_library(), admin_library()
    places = {number: library.TopicPartition(topic, number) for number in partitions}
    futures = admin.list_offsets(
        dict.fromkeys(places.values(), administration.OffsetSpec.latest()),
        isolation_level=library.IsolationLevel.READ_UNCOMMITTED,
        request_timeout=_CALL_S,
    )
    return {
        number: answered(futures[place].result(_CALL_S).offset) for number, place in places.items()
    }
