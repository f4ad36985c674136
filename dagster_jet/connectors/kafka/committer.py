"""Phase 2 of a topic: an epoch's messages and its marker in one transaction.

The `transactional.id` is that of the job and the sink, always. Who opens a producer fences all that
were there before (`init_transactions` ends their open transaction) and then reads the marker: so
nobody can commit what the reader of a marker has not seen. A producer that was fenced, or whose
commit has an unknown outcome, is given up; the next one reads the marker again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.contract import CommitContext, Committer
from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    Troubles,
    client_library,
    error_of,
    is_lasting,
)
from dagster_jet.connectors.kafka.markers import (
    Marker,
    Owner,
    marker_partitions,
    partition_of,
    read_markers,
)
from dagster_jet.connectors.staging import (
    Segment,
    StoreArea,
    remove_orphans,
    rows_of,
    segments_by_epoch,
)
from dagster_jet.errors import (
    ArtifactLostError,
    FencedError,
    JetError,
    Reaction,
    SinkError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

_logger = logging.getLogger(__name__)

TRANSACTION_S = 600
"""The broker gives a transaction up after so long; its own limit is 15 minutes unless changed."""
MESSAGE_BYTES_MAX = 100_000_000
_INIT_S, _COMMIT_S = 60.0, 120.0
_FULL_S = 0.05


@dataclass
class KafkaCommitter(Committer):
    """Commits for one execution."""

    cluster: Cluster
    topic: str
    marker_topic: str
    area: StoreArea
    owner: Owner
    _producer: Any = None
    _troubles: Troubles = field(default_factory=Troubles)
    _markers: dict[int, Marker] = field(default_factory=dict)
    _marker_partitions: int = 0

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        try:
            for epoch_id, segments in segments_by_epoch(self.area, artifacts):
                self._commit_epoch(epoch_id, segments, context)
                for segment in segments:
                    segment.remove()
        except client_library().KafkaException as error:
            self._give_up()
            raise self._error(error_of(error), error) from error
        except TimeoutError as error:
            self._give_up()
            raise SinkUnavailableError(
                f"the topic {self.topic!r} cannot be written now: {error}.",
                job=self.owner.job,
                stage=self.owner.sink,
            ) from error
        except BaseException:
            self._give_up()
            raise

    def _commit_epoch(
        self, epoch_id: int, segments: Sequence[Segment], context: CommitContext
    ) -> None:
        producer = self._opened()
        execution_id = context.execution_id if context.repeatable else 0
        newest = self._markers.get(context.timeline)
        if newest is not None and newest.covers(epoch_id, execution_id):
            return
        if newest is not None and newest.by_execution > context.execution_id:
            raise FencedError(
                "a newer execution of the job commits to the topic.",
                job=self.owner.job,
                stage=self.owner.sink,
            )
        fail_point("kafka.commit.before")
        producer.begin_transaction()
        for batch in self._rows(segments, context):
            self._produce(batch)
        marker = Marker(epoch_id, execution_id, context.execution_id)
        key = self.owner.key(context.timeline)
        producer.produce(
            self.marker_topic,
            marker.value(),
            key,
            partition=partition_of(key, self._marker_partitions),
        )
        fail_point("kafka.commit.produced")
        producer.commit_transaction(_COMMIT_S)
        fail_point("kafka.commit.after")
        self._markers[context.timeline] = marker

    def _rows(
        self, segments: Sequence[Segment], context: CommitContext
    ) -> Iterator[pa.RecordBatch]:
        for segment in segments:
            try:
                # All of a segment is checked before any of it counts: the marker comes last.
                yield from rows_of([segment])
            except ArtifactLostError:
                if not context.accept_loss:
                    raise
                context.report_lost(segment.artifact)

    def _produce(self, batch: pa.RecordBatch) -> None:
        columns = batch.to_pydict()
        count = batch.num_rows
        nothing = [None] * count
        keys, values = columns["__key"], columns["__value"]
        headers = columns.get("__headers", nothing)
        partitions = columns.get("__partition", nothing)
        times = columns.get("__timestamp", nothing)
        for key, value, header, partition, at_ms in zip(
            keys, values, headers, partitions, times, strict=True
        ):
            more: dict[str, Any] = {}
            if header is not None:
                more["headers"] = list(header)
            if partition is not None:
                more["partition"] = partition
            if at_ms is not None:
                more["timestamp"] = at_ms
            self._send(value, key, more)
        self._producer.poll(0)

    def _send(self, value: bytes | None, key: bytes | None, more: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(self.topic, value, key, **more)
            except BufferError:  # its queue is full: it is sending
                self._producer.poll(_FULL_S)
            else:
                return

    def _opened(self) -> Any:
        if self._producer is not None:
            return self._producer
        settings = self.cluster.settings(
            **{
                "transactional.id": self.owner.transactional_id,
                "enable.idempotence": True,
                "linger.ms": 5,
                "error_cb": self._troubles,
            }
        )
        settings.setdefault("transaction.timeout.ms", TRANSACTION_S * 1000)
        # How large a message may be is the topic's business.
        settings.setdefault("message.max.bytes", MESSAGE_BYTES_MAX)
        producer = client_library().Producer(settings)
        self._producer = producer
        producer.init_transactions(_INIT_S)
        fail_point("kafka.fenced")
        self._markers = read_markers(self.cluster, self.marker_topic, self.owner)
        self._marker_partitions = len(marker_partitions(producer, self.marker_topic))
        return producer

    def _give_up(self) -> None:
        """Lets go of the producer, as a crash would: the next one ends its transaction."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        # One that has failed for good, or was fenced, says so again: it hides why we are here.
        with contextlib.suppress(client_library().KafkaException):
            producer.purge()
            producer.poll(0)

    def _error(self, error: Any, raised: Exception) -> JetError:
        if error is None:
            return SinkError(f"the topic cannot be written: {raised}", stage=self.owner.sink)
        explained = self._troubles.explain(error)
        if not is_lasting(explained):
            # Fenced by somebody, too: whoever it is, the marker says what is committed.
            return SinkUnavailableError(
                f"the topic {self.topic!r} cannot be written now: {explained.str()}.",
                job=self.owner.job,
                stage=self.owner.sink,
            )
        cure = (
            "Correct the credentials, the rights (WRITE on the topic, the marker topic and the "
            "transactional id) or the topic's settings."
        )
        if explained.code() == client_library().KafkaError.INVALID_TRANSACTION_TIMEOUT:
            cure = (
                f"The broker's transaction.max.timeout.ms is below {TRANSACTION_S} s: raise it, or "
                'ask for less: options={"transaction.timeout.ms": "60000"}.'
            )
        found = SinkError(
            f"the topic {self.topic!r} cannot be written: {explained.str()}.",
            job=self.owner.job,
            stage=self.owner.sink,
            cure=cure,
        )
        found.reaction = Reaction.FAIL
        return found

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        return remove_orphans(self.area, context.execution_id, keep)

    def close(self) -> None:
        self._give_up()
