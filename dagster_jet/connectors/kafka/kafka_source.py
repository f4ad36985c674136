"""Definition of topics as a source, and the checks of the cluster before a start."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dagster_jet.connectors.change_columns import IN_TOPIC
from dagster_jet.connectors.kafka.cluster import Cluster, client_library
from dagster_jet.connectors.kafka.kafka_reader import KafkaReader, Reading
from dagster_jet.connectors.kafka.kafka_sink import KafkaSink
from dagster_jet.connectors.kafka.offsets import Offsets, Start, Topics
from dagster_jet.connectors.kafka.read_task import METADATA, metadata_ddl
from dagster_jet.connectors.kafka.rights import check_rights
from dagster_jet.connectors.kafka.topic_limits import TopicLimits
from dagster_jet.connectors.values.avro_records import AvroRecords
from dagster_jet.connectors.values.debezium_changes import DebeziumChanges
from dagster_jet.connectors.values.declared_types import check_json_columns
from dagster_jet.contract import BadRowRule, Sink, Source
from dagster_jet.core.choices import check_known
from dagster_jet.core.secret import shown
from dagster_jet.errors import ConfigurationError, SinkUnavailableError, SourceUnavailableError

_logger = logging.getLogger(__name__)

FORMATS = ("json", "avro", "debezium", "raw")
OnDataLoss = Literal["fail", "skip"]
Tombstones = Literal["skip", "pass", "dead-letter"]


@dataclass(frozen=True)
class KafkaSource(Source):
    """Reads committed messages of topics by offset; joins no consumer group."""

    cluster: Cluster
    topics: Topics
    format: str
    value_schema: str | None
    """DDL of values, or of the table whose changes Debezium sends; None for raw values."""
    start: Start = "earliest"
    metadata: bool = False
    on_data_loss: OnDataLoss = "fail"
    tombstones: Tombstones = "skip"
    group: str | None = None
    """None: named after job and stage; "": no group."""
    avro: AvroRecords | None = None
    asset_key: tuple[str, ...] = ()
    """Asset that the source reads, if the orchestrator knows it; else ()."""

    def __post_init__(self) -> None:
        client_library()
        check_known("format", self.format, FORMATS)
        if (self.value_schema is None) == (self.format != "raw"):
            has = "need one" if self.value_schema is None else "have none"
            raise ConfigurationError(f"schema: {self.format} values {has}.")
        if (self.avro is None) == (self.format == "avro"):
            raise ConfigurationError(
                'avro_schema, registry: exactly one of them is needed for format="avro", and none '
                "for other values."
            )
        is_one = len(self.topics.names) == 1 and self.topics.pattern is None
        if self.format == "debezium" and not is_one:
            raise ConfigurationError(
                f"topics: {self.topics} may have changes of several tables.",
                cure='Name one topic, of one table, for each source with format="debezium".',
            )
        check_json_columns(self.value_schema or "")
        _ = self._debezium  # checks the schema
        for topic in self.start if isinstance(self.start, Mapping) else ():
            if not self.topics.has(topic):
                raise ConfigurationError(
                    f"start: the topic {topic!r} is not read.",
                    cure=f"Correct its name: {self.topics} is read.",
                )
        if self.on_data_loss not in ("fail", "skip"):
            raise ConfigurationError(
                f"on_data_loss: {self.on_data_loss!r} is unknown.", cure='Use "fail" or "skip".'
            )
        known = ("skip", "pass") if self.format == "raw" else ("skip", "pass", "dead-letter")
        if self.tombstones not in known:
            raise ConfigurationError(
                f"tombstones: {self.format} values cannot have {self.tombstones!r}.",
                cure=f"Use one of {', '.join(known)}.",
            )

    @property
    def _debezium(self) -> DebeziumChanges | None:
        if self.format != "debezium" or self.value_schema is None:
            return None
        return DebeziumChanges(self.value_schema, self.tombstones == "pass")

    @property
    def _columns(self) -> str | None:
        """Columns of values."""
        changes = self._debezium
        return self.value_schema if changes is None else changes.ddl

    @property
    def _added(self) -> tuple[str, ...]:
        """Columns of metadata."""
        if self.metadata:
            return tuple(METADATA.names)
        return IN_TOPIC if self.format == "debezium" else ()

    def row_schema(self) -> str:
        added = metadata_ddl(self._added)
        return ", ".join(filter(None, [self._columns or "value binary", added]))

    def describe(self) -> dict[str, str]:
        return {
            "kind": "kafka",
            "servers": shown(self.cluster.servers),
            "topics": str(self.topics),
            "format": self.format,
        }

    def reads_output_of(self, sink: Sink) -> bool:
        """Returns whether its pattern matches a topic of the sink. A job may write to a topic that
        it reads by name, such as one of retries."""
        if self.topics.pattern is None or not isinstance(sink, KafkaSink):
            return False
        return self.cluster.servers == sink.cluster.servers and any(
            map(self.topics.has, sink.all_topics)
        )

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> KafkaSource:
        """Checks the topics, so that a wrong name, wrong credentials or missing permissions fail
        the start with a clear error. If the cluster is unavailable, the reader waits for it."""
        try:
            partitions = Offsets(self.cluster, self.topics, job, stage).partitions()
            topics = sorted({partition.topic for partition in partitions})
            check_rights(self.cluster, dict.fromkeys(topics, ("READ",)), job, stage)
            if self.format == "debezium" and self.tombstones == "skip":
                self._check_compaction(topics[0], len(partitions), job, stage)
        except (SourceUnavailableError, SinkUnavailableError) as error:
            _logger.warning("%s", error)
        return self

    def _check_compaction(self, topic: str, partitions: int, job: str, stage: str) -> None:
        if TopicLimits.of(self.cluster, topic, partitions).needs_key:
            raise ConfigurationError(
                f"the topic {topic!r} is compacted: of a row that was deleted it may have only a "
                "tombstone, and tombstones are skipped.",
                job=job,
                stage=stage,
                cure='Read them as deletions: sources.kafka(..., tombstones="pass").',
            )

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> KafkaReader:
        reading = Reading(
            self.cluster,
            self.topics,
            self._columns,
            self.start,
            self._added,
            self.on_data_loss == "skip",
            self.tombstones,
            f"dagster_jet.{job}.{stage}" if self.group is None else self.group,
            self.avro,
            self._debezium,
        )
        return KafkaReader(reading, job, stage, bad_rows)
