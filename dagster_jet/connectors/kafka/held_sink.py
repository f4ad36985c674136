"""Topic as a sink whose writers hold transactions until the snapshot is decided.

In phase 1 tasks produce an epoch's messages in transactions that stay open; phase 2 commits them by
producer id (`held_committer.py`). Rows are staged, too, because a broker aborts a transaction that
is open too long.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.held import TRANSACTIONS
from dagster_jet.connectors.kafka.held_committer import HeldKafkaCommitter
from dagster_jet.connectors.kafka.held_rows import HeldWriter
from dagster_jet.connectors.kafka.kafka_sink import KafkaSink
from dagster_jet.connectors.kafka.markers import HELD_SUFFIX
from dagster_jet.connectors.kafka.newest_execution import NewestExecution
from dagster_jet.connectors.kafka.topic_limits import TopicLimits
from dagster_jet.connectors.kafka.transaction_coordinator import (
    TransactionCoordinator,
    client_settings,
    coordinator_library,
)
from dagster_jet.connectors.kafka.transactions import TRANSACTION_MAX_S
from dagster_jet.connectors.row_order import divided_among_writers
from dagster_jet.connectors.staging import RowsWriter
from dagster_jet.contract import Committer, Held, SinkWriter, TransactionId
from dagster_jet.core.choices import check_known
from dagster_jet.core.secret import text_of
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class HeldKafkaSink(KafkaSink):
    """Produces a stream to a topic, in a fixed number of transactions per epoch."""

    held_writers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        coordinator_library()
        if self.held_writers < 1:
            raise ConfigurationError(f"writers: {self.held_writers} is less than 1.")

    @classmethod
    def of(cls, sink: KafkaSink, transactions: str, writers: int) -> HeldKafkaSink:
        check_known("transactions", transactions, TRANSACTIONS)
        if sink.topics:
            raise ConfigurationError(
                "topic_column: held transactions write to one topic: their writers divide its "
                "messages by key.",
                cure='Leave transactions="held" out.',
            )
        given = {one.name: getattr(sink, one.name) for one in fields(KafkaSink)}
        return cls(**given, held_writers=writers)

    def held(self) -> Held:
        asked = dict(self.cluster.options).get("transaction.timeout.ms")
        timeout_ms = TRANSACTION_MAX_S * 1000 if asked is None else int(text_of(asked))
        return Held(self.held_writers, timeout_ms)

    def describe(self) -> dict[str, str]:
        return {**super().describe(), "kind": "kafka_held", "writers": str(self.held_writers)}

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        super().check(job, stage, is_new_job=is_new_job)
        client_settings(self.cluster)
        coordinator = self._coordinator(job, stage)
        try:
            coordinator.describe(self._owner(job, stage).transactional_id)
        finally:
            coordinator.close()

    @property
    def _marker_topics(self) -> tuple[str, ...]:
        return (self.marker_topic, self._held_marker_topic)

    def takes(self, schema: pa.Schema) -> bool:
        return False  # `render` sets the number of writers

    def render(self, frame: DataFrame) -> DataFrame:
        """Sends messages whose order matters to the same writer: those of one key or `partition`,
        those that have neither, and all of a topic with one partition."""
        from pyspark.sql import functions as F

        messages = super().render(frame)
        has_one = isinstance(self.limits, TopicLimits) and self.limits.partitions == 1
        log = F.lit(0) if has_one else F.hash("__key")
        if self.partition is not None and not has_one:
            log = F.when(F.col("__partition").isNull(), log).otherwise(F.hash("__partition"))
        return divided_among_writers(messages, self.held_writers, log)

    def open_writer(self, transaction: TransactionId) -> SinkWriter:
        staged = super().open_writer(transaction)
        assert isinstance(staged, RowsWriter)
        owner = self._owner(transaction.job, transaction.sink)
        newest = NewestExecution(self.area(transaction.job, transaction.sink))
        return HeldWriter(
            self.cluster,
            self.topic,
            self._held_marker_topic,
            owner,
            transaction,
            staged,
            newest,
            self.topic_id,
            self.batch_bytes,
        )

    def open_committer(self, job: str, stage: str) -> Committer:
        return HeldKafkaCommitter(
            self.cluster,
            self.topic,
            self.marker_topic,
            self._held_marker_topic,
            self.area(job, stage),
            self._owner(job, stage),
            self.held_writers,
            self._coordinator(job, stage),
            self.topic_id,
            self.batch_bytes,
        )

    def _coordinator(self, job: str, stage: str) -> TransactionCoordinator:
        return TransactionCoordinator(self.cluster, job, stage)

    @property
    def _held_marker_topic(self) -> str:
        return self.marker_topic + HELD_SUFFIX
