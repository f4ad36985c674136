"""Phase 1 of held transactions: tasks produce the rows and leave the transactions open.

A writer first stages its rows, as in every Kafka sink. Then it produces them and a marker in a
transaction that stays open. Its transactional id, producer id and epoch suffice to commit it from
anywhere. librdkafka reports the last two in its statistics.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.held import held_id
from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    LastError,
    client_library,
    error_of,
)
from dagster_jet.connectors.kafka.markers import Marker, Owner
from dagster_jet.connectors.kafka.newest_execution import NewestExecution
from dagster_jet.connectors.kafka.transactions import (
    SILENCE_S,
    TRANSACTION_MAX_S,
    Advance,
    FirstRefusal,
    UnansweredError,
    new_client,
    patiently,
    send_rows,
    sink_error,
)
from dagster_jet.connectors.staging import RowsWriter
from dagster_jet.contract import SinkWriter, TransactionId
from dagster_jet.errors import SinkError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

_STATISTICS_MS, _CALL_S = 50, 0.5
_ABORT_S = 5.0


@dataclass(frozen=True)
class HeldTransaction:
    """Content of an artifact's token: enough to commit the transaction or query its outcome."""

    staged: str
    """Token of the staged segment, which has the same rows."""
    part: str
    """Held id within the sink: writer and number."""
    timeline: int
    producer_id: int
    producer_epoch: int
    marker_at: tuple[int, int]
    """Partition and offset of its marker."""
    topic_id: str = ""
    """See `Marker`."""

    @property
    def token(self) -> str:
        """The last slash is the segment's, so a roll-forward sink of this name keeps it, too."""
        partition, offset = self.marker_at
        ids = f"{self.producer_id} {self.producer_epoch}"
        of = self.topic_id or "-"
        return f"{self.staged} {self.part} {self.timeline} {ids} {partition} {offset} {of}"

    @classmethod
    def of(cls, token: str) -> HeldTransaction | None:
        """Returns None for the token of rows that are only staged."""
        fields = token.rsplit(" ", 7)
        if len(fields) < 8:
            return None
        staged, part, *numbers, of = fields
        timeline, producer_id, producer_epoch, *marker_at = map(int, numbers)
        at = marker_at[0], marker_at[1]
        return cls(staged, part, timeline, producer_id, producer_epoch, at, of.strip("-"))

    @property
    def execution_id(self) -> int:
        """Execution of the writer."""
        return int(self.staged.partition("-")[0])


def part_of(held: str) -> str:
    """Part of a held id that is unique within its sink."""
    return held.rpartition("/")[2]


@dataclass
class HeldWriter(SinkWriter):
    """Stages and produces one task's rows of one epoch. After a crash the next execution aborts the
    open transaction, or the broker does after its time-out."""

    cluster: Cluster
    topic: str
    marker_topic: str
    sink: Owner
    transaction: TransactionId
    staged: RowsWriter
    newest: NewestExecution
    topic_id: str = ""
    batch_bytes: int | None = None
    _client: Any = None
    _troubles: LastError = field(default_factory=LastError)
    _left: int = 0
    """Messages without a delivery report."""
    _failed: Any = None
    """First delivery error, temporary or not."""
    _refusal: FirstRefusal = field(default_factory=FirstRefusal)
    _ids: tuple[int, int] | None = None
    _marker_at: tuple[int, int] | None = None

    @cached_property
    def owner(self) -> Owner:
        return replace(self.sink, part=part_of(held_id(self.transaction)))

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        # Staged before the transaction begins, so that a late `abort_orphans` of a dead execution
        # sees that the transaction is newer.
        self.staged.write(batch)
        with self._errors_named():
            if self._client is None:
                self._begin()
            self._left += batch.num_rows
            send_rows(self._client, self.topic, batch, lambda: self._left)
            self._raise_failed()

    def prepare(self) -> tuple[Artifact, ...]:
        artifacts = self.staged.prepare()
        if not artifacts:
            return ()
        with self._errors_named():
            fail_point("kafka.held.before")
            self._send_marker()
            self._flush()
            self._stop_if_outdated()
            assert self._ids is not None and self._marker_at is not None
            # Not closed, which would abort it: from here on anybody with its ids can end it.
            self._client = None
        fail_point("kafka.held.prepared")
        t = self.transaction
        [staged] = artifacts
        held = HeldTransaction(
            staged.token, self.owner.part, t.timeline, *self._ids, self._marker_at, self.topic_id
        )
        return (replace(staged, token=held.token),)

    def abort(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(client_library().KafkaException):  # this client may be what has failed
                client.purge()
                client.abort_transaction(_ABORT_S)
        self.staged.abort()

    def close(self) -> None:
        self._client = None

    def _begin(self) -> None:
        self._stop_if_outdated()
        client = new_client(
            self.cluster,
            self.owner.transactional_id,
            TRANSACTION_MAX_S,
            self.batch_bytes,
            **{
                "error_cb": self._troubles,
                "on_delivery": self._delivered,
                "stats_cb": self._note_ids,
                "statistics.interval.ms": _STATISTICS_MS,
            },
        )
        # Connects first: otherwise the next call retries only after 500 ms.
        client.list_topics(self.marker_topic, timeout=SILENCE_S)
        # Ends an open transaction of an older execution or another attempt of the task.
        patiently(client.init_transactions, lambda: 0)
        client.begin_transaction()
        self._client = client
        fail_point("kafka.held.begun")

    def _send_marker(self) -> None:
        t = self.transaction
        self._left += 1
        self._client.produce(
            self.marker_topic,
            Marker(t.epoch_id, t.execution_id, t.execution_id).value(),
            self.owner.key(t.timeline),
            partition=self.owner.partition,
            on_delivery=self._note_marker,
        )

    def _flush(self) -> None:
        """Waits until all messages are answered and the ids are known."""
        advance = Advance(lambda: self._left)
        while self._left:
            self._client.flush(_CALL_S)
            self._raise_failed()
            if advance.has_stopped():
                raise TimeoutError("the cluster takes no messages")
        began = time.monotonic()
        while self._ids is None:
            self._client.poll(_CALL_S)
            if time.monotonic() - began > SILENCE_S:
                raise TimeoutError("the client library does not return its producer id")
        self._raise_failed()

    def _stop_if_outdated(self) -> None:
        t = self.transaction
        if self.newest.noted() > t.execution_id:
            raise SinkError(
                "a newer execution of the job writes to the topic.", job=t.job, stage=t.sink
            )

    def _delivered(self, error: Any, message: Any) -> None:
        self._left -= 1
        self._refusal(error, message)
        if error is not None:
            self._failed = self._failed or error

    def _note_marker(self, error: Any, message: Any) -> None:
        self._delivered(error, message)
        if error is None:
            self._marker_at = message.partition(), message.offset()

    def _note_ids(self, statistics: str) -> None:
        if self._ids is None:
            ids = json.loads(statistics)["eos"]
            if ids["idemp_state"] == "Assigned" and ids["producer_epoch"] >= 0:
                self._ids = ids["producer_id"], ids["producer_epoch"]

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise client_library().KafkaException(self._failed)

    def _heard_refusal(self) -> Any:
        """First permanent delivery error. Later calls report only that they fail, and messages
        purged because of it may be reported before it."""
        deadline = time.monotonic() + _CALL_S
        while (refusal := self._refusal.take()) is None:
            if self._client is None or self._left <= 0 or time.monotonic() > deadline:
                return None
            self._client.poll(_CALL_S)
        return refusal

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except (UnansweredError, client_library().KafkaException) as error:
            # A newer execution has ended our transaction; the broker reports only the symptom.
            self._stop_if_outdated()
            raised = error.error if isinstance(error, UnansweredError) else error_of(error)
            raised = self._heard_refusal() or raised
            if raised is None:
                raise
            says = self._troubles.explain(raised)
            raise sink_error(says, self.topic, self.owner, is_decided=False) from error
        except TimeoutError as error:
            raise SinkUnavailableError(
                f"the topic {self.topic!r} cannot be written now: {error}.",
                job=self.owner.job,
                stage=self.owner.sink,
            ) from error
