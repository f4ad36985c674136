"""Phase 2 of a topic: an epoch's messages and its marker in one transaction.

The `transactional.id` is that of the job and the sink, always. Who opens a producer fences all that
were there before (`init_transactions` ends their open transaction) and then reads the marker: so
nobody can commit what the reader of a marker has not seen. A producer that was fenced, or whose
commit has an unknown outcome, is given up; the next one reads the marker again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import time
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
    said,
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
SILENCE_S = 10.0
"""Who does not get on for so long says so, and is called again: an execution that ends waits for a
call, not for a cluster."""
_CALL_S, _FULL_S = 2.0, 0.05


class _UnansweredError(Exception):
    """A call of the producer's that was begun; the same call goes on with it."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.str())
        self.error = error


class _Advance:
    """Whether a producer gets rid of its messages."""

    def __init__(self, producer: Any) -> None:
        self._producer, self._left, self._since = producer, len(producer), time.monotonic()

    def has_stopped(self) -> bool:
        left = len(self._producer)
        if left != self._left:
            self._left, self._since = left, time.monotonic()
        return time.monotonic() - self._since >= SILENCE_S


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
    _is_fenced_off: bool = False
    """Whether others are, and the markers read: messages may be produced."""
    _undecided: tuple[Marker, int] | None = None
    """A marker and its timeline, whose commit was asked for and not answered: to be asked again."""

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        with self._errors_named():
            for epoch_id, segments in segments_by_epoch(self.area, artifacts):
                self._commit_epoch(epoch_id, segments, context)
                for segment in segments:
                    segment.remove()

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        with self._errors_named():
            marker = read_markers(self.cluster, self.marker_topic, self.owner).get(context.timeline)
        execution_id = context.execution_id if context.repeatable else 0
        return marker is not None and all(
            marker.covers(artifact.epoch_id, execution_id) for artifact in artifacts
        )

    def try_out(self) -> dict[int, Marker]:
        """Begins as a new execution does, and commits nothing: whether the broker takes the
        transactional id and its time-out is known before there is anything to lose.

        Returns:
            The markers that are there, by timeline.

        Raises:
            JetError: as `commit`.
        """
        try:
            with self._errors_named():
                self._producer = self._new_producer()
                return self._fenced(self._producer)
        finally:
            self._give_up()

    @contextlib.contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except _UnansweredError as error:  # the producer stays: the next call asks on
            raise self._error(error.error, error) from error
        except client_library().KafkaException as error:
            self._give_up()
            raise self._error(error_of(error), error) from error
        except (TimeoutError, concurrent.futures.TimeoutError) as error:
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
        marker = Marker(epoch_id, execution_id, context.execution_id)
        if newest is not None and newest.covers(epoch_id, execution_id):
            return
        if self._undecided not in (None, (marker, context.timeline)):
            raise TimeoutError("another epoch's commit was not answered")
        if newest is not None and newest.by_execution > context.execution_id:
            raise FencedError(
                "a newer execution of the job commits to the topic.",
                job=self.owner.job,
                stage=self.owner.sink,
            )
        if self._undecided is None:
            self._produce_epoch(producer, segments, marker, context)
        self._undecided = marker, context.timeline
        self._patiently(producer.commit_transaction)
        self._undecided = None
        fail_point("kafka.commit.after")
        self._markers[context.timeline] = marker

    def _produce_epoch(
        self, producer: Any, segments: Sequence[Segment], marker: Marker, context: CommitContext
    ) -> None:
        fail_point("kafka.commit.before")
        producer.begin_transaction()
        for batch in self._rows(segments, context):
            self._produce(batch)
        key = self.owner.key(context.timeline)
        producer.produce(
            self.marker_topic,
            marker.value(),
            key,
            partition=partition_of(key, self._marker_partitions),
        )
        fail_point("kafka.commit.produced")

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
        waiting: _Advance | None = None
        while True:
            try:
                self._producer.produce(self.topic, value, key, **more)
            except BufferError:  # its queue is full: it is sending
                waiting = waiting or _Advance(self._producer)
                if waiting.has_stopped():
                    raise TimeoutError("the cluster takes no messages") from None
                self._producer.poll(_FULL_S)
            else:
                return

    def _patiently(self, call: Any) -> None:
        """A call of the producer's that is resumed when it is made again, for as long as the
        cluster takes messages. Raises `_UnansweredError`: it can be resumed later, too."""
        advance = _Advance(self._producer)
        while True:
            try:
                call(_CALL_S)
                return
            except client_library().KafkaException as error:
                raised = error_of(error)
                if raised is None or raised.code() != client_library().KafkaError._TIMED_OUT:
                    raise
                if advance.has_stopped():
                    raise _UnansweredError(raised) from None

    def _opened(self) -> Any:
        if self._producer is None:
            self._producer = self._new_producer()
        producer = self._producer
        if not self._is_fenced_off:
            self._markers = self._fenced(producer)
            fail_point("kafka.fenced")
            self._marker_partitions = len(marker_partitions(producer, self.marker_topic))
            self._is_fenced_off = True
        return producer

    def _fenced(self, producer: Any) -> dict[int, Marker]:
        """The markers, once nobody else can commit."""
        self._patiently(producer.init_transactions)
        return read_markers(self.cluster, self.marker_topic, self.owner)

    def _new_producer(self) -> Any:
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
        return client_library().Producer(settings)

    def _give_up(self) -> None:
        """Lets go of the producer, as a crash would: the next one ends its transaction."""
        producer, self._producer = self._producer, None
        self._is_fenced_off, self._undecided = False, None
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
                f"the topic {self.topic!r} cannot be written now: {said(explained)}.",
                job=self.owner.job,
                stage=self.owner.sink,
            )
        cure = (
            "Correct the credentials, the rights (WRITE on the topic, the marker topic and the "
            f"transactional id {self.owner.transactional_id!r}) or the topic's settings."
        )
        if explained.code() == client_library().KafkaError.INVALID_TRANSACTION_TIMEOUT:
            cure = (
                "transaction.timeout.ms is above the broker's transaction.max.timeout.ms: raise "
                'that, or ask for less: options={"transaction.timeout.ms": "60000"}.'
            )
        found = SinkError(
            f"the topic {self.topic!r} cannot be written: {said(explained)}.",
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
