"""Markers of committed epochs in a compacted topic, written with the messages themselves.

A marker's key is (store, namespace, job, sink, timeline); its value is the last epoch and the
execution that committed it. One topic has the markers of all jobs.

Markers of held transactions are in another topic: they stay open longer, and a reader of markers
waits for open transactions.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    LastError,
    client_library,
    error_of,
    is_lasting,
    said,
)
from dagster_jet.connectors.sink_owner import SinkOwner
from dagster_jet.errors import SinkError

MARKER_TOPIC = "dagster-jet-markers"
HELD_SUFFIX = "-held"
"""Suffix of the topic with markers of held transactions."""
PARTITIONS = 32
"""A sink's markers are in one partition, whose reader waits for the open transactions there."""
_SILENCE_S = 10.0


def id_of(ids: Mapping[str, str], several: Sequence[str]) -> str:
    """The id of a sink's topic, or of its several topics; empty if unknown.

    Args:
        ids: of topics, by name.
        several: names of the topics; empty if there is one.
    """
    if several:
        return " ".join(f"{name}:{ids[name]}" for name in sorted(several) if name in ids)
    return next(iter(ids.values()), "")


def _each(topic_id: str) -> dict[str, str]:
    """By topic; of one topic without its name."""
    pairs = (one.rpartition(":") for one in topic_id.split())
    return {topic: id for topic, _, id in pairs}


@dataclass(frozen=True)
class Marker:
    """Last committed epoch. `execution_id` is 0 unless epochs may come again (`repeatable`)."""

    epoch_id: int
    execution_id: int
    by_execution: int
    """Execution that committed it."""
    topic_id: str = ""
    """Id of the topic with the messages, at the start of that execution, as of `id_of`; empty:
    unknown."""
    refused: str = ""
    """Memo of rows left out of the epoch, until they are delivered (`RefusedRows`)."""

    def value(self) -> bytes:
        content = {"epoch": self.epoch_id, "execution": self.execution_id, "by": self.by_execution}
        more = {"topic": self.topic_id, "refused": self.refused}
        return json.dumps({**content, **{k: v for k, v in more.items() if v}}).encode()

    @classmethod
    def of(cls, value: bytes) -> Marker:
        content = json.loads(value)
        more = content.get("topic", ""), content.get("refused", "")  # left out if empty
        return cls(content["epoch"], content["execution"], content["by"], *more)

    def supersedes(self, other: Marker) -> bool:
        """Markers are ordered by committing execution, then epoch. An equal one supersedes, too: it
        may be written again without its memo."""
        return (self.by_execution, self.epoch_id) >= (other.by_execution, other.epoch_id)

    def is_of(self, topic_id: str) -> bool:
        """True if its messages are in this topic, or if that is unknown. Of several topics those
        count that both ids know."""
        then, now = _each(self.topic_id), _each(topic_id)
        return all(now.get(topic, id) == id for topic, id in then.items())

    def covers(self, epoch_id: int, execution_id: int) -> bool:
        return self.execution_id == execution_id and self.epoch_id >= epoch_id

    def reaches(self, execution_id: int, epoch_id: int) -> bool:
        """For a held transaction: its marker names the execution that wrote it, and it is committed
        before later ones."""
        return (self.execution_id, self.epoch_id) >= (execution_id, epoch_id)


@dataclass(frozen=True)
class Owner(SinkOwner):
    """Owner of markers in a topic."""

    part: str = ""
    """Held id within the sink, which has transactions of its own."""

    @property
    def partition(self) -> int:
        """Partition in a marker topic for all timelines and parts of the sink. Independent of the
        topic's number of partitions, which may grow."""
        whole = json.dumps(replace(self, part="").as_list()).encode()
        return int(xxhash.xxh3_64_intdigest(whole) % PARTITIONS)

    def key(self, timeline: int) -> bytes:
        return json.dumps([*self.as_list(), timeline]).encode()

    def as_list(self) -> list[str]:
        part = [self.part] if self.part else []
        return [self.store, self.namespace, self.job, self.sink, *part]

    def owns(self, key: bytes) -> bool:
        """True if a marker's key belongs to the sink or a part of it."""
        mine = replace(self, part="").as_list()
        return bool(json.loads(key)[: len(mine)] == mine)

    @property
    def transactional_id(self) -> str:
        return "/".join(["dagster_jet", *self.as_list()])


def read_markers(cluster: Cluster, topic: str, owner: Owner) -> dict[int, Marker]:
    """Newest marker of a sink by timeline; raises as `MarkerReader.newest`."""
    reader = MarkerReader(cluster, topic, owner)
    try:
        return reader.newest()
    finally:
        reader.close()


@dataclass
class MarkerReader:
    """Reads the markers of one sink repeatedly, each message once.

    Only the sink's partition is read, so an open transaction of another sink in another partition
    causes no wait.
    """

    cluster: Cluster
    topic: str
    owner: Owner
    _newest: dict[int, Marker] = field(default_factory=dict)
    _read_to: int = 0
    _administration: Administration = field(init=False)

    def __post_init__(self) -> None:
        self._administration = Administration(self.cluster)

    def newest(self) -> dict[int, Marker]:
        """Newest marker by timeline; for a producer that has just fenced all others.

        Reads to the current end, including open transactions, and waits until these are decided:
        `read_committed` shows nothing after an open transaction of any sink in the partition.

        Raises:
            KafkaException: the cluster does not answer.
            TimeoutError: a transaction of another sink stays open, or the topic does not exist.
            SinkError: the topic has lost its end, perhaps with markers that were read.
        """
        partition = self.owner.partition
        end = _end(self._administration, self.topic, partition)
        if end < self._read_to:
            raise SinkError(
                f"the topic of markers {self.topic!r} ends at {end}, and was read up to "
                f"{self._read_to}: it was created again, or the cluster is behind.",
                job=self.owner.job,
                stage=self.owner.sink,
                cure="The job restarts, and the start compares the topic with the job's record.",
            )
        if end > self._read_to:
            place = Place(self.topic, partition, self._read_to, end)
            for message in _messages(self.cluster, place):
                self._take(message)
                self._read_to = message.offset() + 1
            self._read_to = max(self._read_to, end)
        return dict(self._newest)

    def close(self) -> None:
        self._administration.close()

    def _take(self, message: Any) -> None:
        *of, timeline = json.loads(message.key())
        if of != self.owner.as_list() or message.value() is None:
            return
        marker, before = Marker.of(message.value()), self._newest.get(timeline)
        if before is None or marker.supersedes(before):
            self._newest[timeline] = marker


@dataclass(frozen=True)
class Place:
    """Offset range in one partition."""

    topic: str
    partition: int
    start: int
    end: int


def has_markers(cluster: Cluster, topic: str, owner: Owner) -> bool:
    """True if the sink or its parts have any marker. Raises as `read_markers`."""
    end = _end(Administration(cluster), topic, owner.partition)
    place = Place(topic, owner.partition, 0, end)
    return place.end > 0 and any(owner.owns(message.key()) for message in _messages(cluster, place))


def is_visible(
    cluster: Cluster, topic: str, owner: Owner, timeline: int, marker: Marker, at: tuple[int, int]
) -> bool:
    """True if the marker written at (partition, offset), or a later one, is committed.

    Waits until everything up to there is decided, and for nothing after it.

    Raises:
        KafkaException: the cluster does not answer.
        TimeoutError: an older transaction stays open.
    """
    key, (partition, offset) = owner.key(timeline), at
    for message in _messages(cluster, Place(topic, partition, offset, offset + 1)):
        is_ours = message.key() == key and message.value() is not None
        if is_ours and Marker.of(message.value()).reaches(marker.execution_id, marker.epoch_id):
            return True
    return False


def _messages(cluster: Cluster, place: Place) -> Iterator[Any]:
    """Yields committed messages until all before the end is decided; perhaps more."""
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
            "error_cb": LastError(),
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


def _end(administration: Administration, topic: str, partition: int) -> int:
    """End of the partition, including undecided messages.

    Raises:
        KafkaException: the cluster does not answer.
        TimeoutError: the topic is not there now. An end of 0 would mean that nothing is committed.
    """
    library = client_library()
    try:
        return administration.ends(topic, [partition])[partition]
    except library.KafkaException as error:
        raised = error_of(error)
        if raised is None or raised.code() not in (
            library.KafkaError.UNKNOWN_TOPIC_OR_PART,
            library.KafkaError._UNKNOWN_PARTITION,
        ):
            raise
        raise TimeoutError(f"the topic {topic} does not exist: {said(raised)}") from None
