"""Topic as a transactional sink: messages are staged in phase 1 and produced in phase 2.

Phase 1 stages an epoch's messages in the job's store. Phase 2 produces all of them and a marker in
one transaction: `read_committed` consumers see an epoch whole or not at all. The marker is in a
compacted topic of its own; after a crash it shows whether the epoch is committed (`markers.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.earlier_epochs import refuse_earlier_epochs
from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.kafka import arrow_messages
from dagster_jet.connectors.kafka.arrow_messages import MessagesWriter, as_messages
from dagster_jet.connectors.kafka.cluster import Cluster, client_library
from dagster_jet.connectors.kafka.kafka_committer import KafkaCommitter
from dagster_jet.connectors.kafka.marker_topic import check_marker_topic
from dagster_jet.connectors.kafka.markers import MARKER_TOPIC, Owner, has_markers, id_of
from dagster_jet.connectors.kafka.messages import MessageLayout, message_columns
from dagster_jet.connectors.kafka.offsets import Offsets, Partition, Topics
from dagster_jet.connectors.kafka.rights import check_rights
from dagster_jet.connectors.kafka.topic_limits import Limits, SeveralTopics, TopicLimits
from dagster_jet.connectors.staging import SegmentWriter, StagedInStore
from dagster_jet.contract import Committer, Refused, SinkWriter, TransactionId
from dagster_jet.core.choices import check_known
from dagster_jet.core.secret import shown
from dagster_jet.errors import (
    ConfigurationError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store, StoreHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("json", "raw")


@dataclass(frozen=True)
class KafkaSink(StagedInStore):
    """Produces a stream to a topic."""

    cluster: Cluster
    topic: str
    """Topic of all messages; of several topics the text for errors."""
    key: tuple[str, ...] = ()
    format: str = "json"
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    tombstone: str | None = None
    """Column that is true in rows whose messages have no value."""
    marker_topic: str = MARKER_TOPIC
    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    topics: tuple[str, ...] = ()
    """Topics that rows may name in `topic_column`; empty: all go to `topic`."""
    topic_column: str | None = None
    store: Store | StoreHandle | None = field(default=None, compare=False, repr=False)
    home: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """Store id, and the namespace in the store."""
    limits: Limits | None = field(default=None, compare=False, repr=False)
    """Limits of the topic at this start."""
    topic_id: str = field(default="", compare=False, repr=False)
    """Id of the topics at this start; empty if the broker is too old to report it."""

    def __post_init__(self) -> None:
        client_library()
        check_known("format", self.format, FORMATS)
        if self.tombstone is not None and not self.key:
            raise ConfigurationError(
                "tombstone: a message without a value deletes its key, and messages have none.",
                cure="Name the columns of the key: kafka(..., key=...).",
            )
        if len(set(self.key)) < len(self.key):
            raise ConfigurationError(f"key: {', '.join(self.key)} has a name twice.")
        if wrong := sorted({*self._written}.intersection(self._marker_topics)):
            raise ConfigurationError(
                f"marker_topic: messages would go to {wrong[0]!r}, where markers are.",
                cure="Let it be a topic of markers only.",
            )

    def describe(self) -> dict[str, str]:
        servers = shown(self.cluster.servers)
        described = {"kind": "kafka", "servers": servers, "topic": self.topic}
        if self.topic_column is not None:
            described["topic_column"] = self.topic_column
        if self.key:
            described["key"] = ", ".join(self.key)
        return {**described, **shown_guarantee(self.max_guarantee)}

    def destination(self) -> dict[str, Any]:
        cluster = self.cluster.as_json()
        several = {"topics": list(self.topics)} if self.topics else {}
        return {**cluster, "topic": self.topic, "marker_topic": self.marker_topic, **several}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> KafkaSink:
        marker_topic = destination["marker_topic"]
        cluster = Cluster.from_json(destination)
        several = tuple(destination.get("topics", ()))
        return cls(cluster, destination["topic"], marker_topic=marker_topic, topics=several)

    def with_store(self, store: Store) -> KafkaSink:
        return replace(self, store=store, home=(store.store_id, store.config.namespace))

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> KafkaSink:
        """Checks the topic; if the cluster is unavailable, the start waits for it."""
        known = Counter(partition.topic for partition in self.partitions(job, stage))
        with as_sink_errors(job, stage):
            ids = self._offsets(job, stage).topic_ids(self._written)
        of = {name: TopicLimits.of(self.cluster, name, n) for name, n in sorted(known.items())}
        compacted = [name for name, limits in of.items() if limits.needs_key]
        if compacted and not self.key:
            raise ConfigurationError(
                f"the topic {compacted[0]!r} is compacted, and takes no message without a key.",
                job=job,
                stage=stage,
                cure="Name the columns of the key: kafka(..., key=...).",
            )
        column = self.topic_column
        limits = of[self.topic] if column is None else SeveralTopics(column, of)
        return replace(self, limits=limits, topic_id=id_of(ids, self.topics))

    @property
    def _written(self) -> tuple[str, ...]:
        return self.topics or (self.topic,)

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Topics of messages and of markers."""
        return (*self._written, *self._marker_topics)

    def partitions(self, job: str, stage: str) -> list[Partition]:
        """Partitions of the topics. Raises `ConfigurationError` if one does not exist for us."""
        with as_sink_errors(job, stage):
            return self._offsets(job, stage).partitions()

    def _offsets(self, job: str, stage: str) -> Offsets:
        return Offsets(self.cluster, Topics(self._written), job, stage)

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        self.partitions(job, stage)
        self._check_markers(job, stage, creates=is_new_job)
        producer, owner = self._committer(job, stage).producer, self._owner(job, stage)
        with producer.errors_named():
            producer.try_out()
            if is_new_job and has_markers(self.cluster, self.marker_topic, owner):
                refuse_earlier_epochs(
                    f"the topic {self.marker_topic!r}",
                    job,
                    stage,
                    cure="Use another name for the job or the sink, or another marker_topic.",
                )

    def claim_place(self, job: str, stage: str) -> None:
        """Creates the topics of markers if they do not exist."""
        self._check_markers(job, stage, creates=True)

    def _check_markers(self, job: str, stage: str, *, creates: bool) -> None:
        wanted: dict[str, tuple[str, ...]] = dict.fromkeys(self._written, ("WRITE",))
        with as_sink_errors(job, stage):
            for topic in self._marker_topics:
                if check_marker_topic(self.cluster, topic, job, stage, creates=creates):
                    wanted[topic] = ("READ", "WRITE")
            check_rights(self.cluster, wanted, job, stage)

    @property
    def _marker_topics(self) -> tuple[str, ...]:
        return (self.marker_topic,)

    def takes(self, schema: pa.Schema) -> bool:
        return arrow_messages.can_convert(schema, self._layout)

    def render(self, frame: DataFrame) -> DataFrame:
        return frame.select(*message_columns(frame, self._layout))

    @property
    def _layout(self) -> MessageLayout:
        return MessageLayout(
            self.key,
            self.format,
            self.headers,
            self.partition,
            self.timestamp,
            self.tombstone,
            self.topic_column,
        )

    def refused(self, rows: pa.RecordBatch) -> dict[int, Refused]:
        return {} if self.limits is None else self.limits.refused(as_messages(rows, self._layout))

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        area = self.area(transaction.job, transaction.sink)
        segment = SegmentWriter(area, transaction, f"topic {self.topic}")
        return MessagesWriter(segment, self._layout)

    def open_committer(self, job: str, stage: str) -> Committer:
        return self._committer(job, stage)

    def _committer(self, job: str, stage: str) -> KafkaCommitter:
        owner = self._owner(job, stage)
        return KafkaCommitter(
            self.cluster,
            self.topic,
            self.marker_topic,
            self.area(job, stage),
            owner,
            self.topic_id,
            self.batch_bytes,
            self.topics,
        )

    @property
    def batch_bytes(self) -> int | None:
        """Maximum batch size of the topic, if known."""
        return None if self.limits is None else self.limits.message_bytes

    def _owner(self, job: str, stage: str) -> Owner:
        return Owner(*self.home, job, stage)


@contextmanager
def as_sink_errors(job: str, stage: str) -> Iterator[None]:
    """Translates a source's errors into a sink's."""
    try:
        yield
    except SourceUnavailableError as error:
        raise SinkUnavailableError(error.message, job=job, stage=stage) from None
    except SourceError as error:
        raise ConfigurationError(
            error.message,
            job=job,
            stage=stage,
            cure="Create the topic, or correct its name, the credentials or the rights (WRITE and "
            "DESCRIBE on it).",
        ) from None
