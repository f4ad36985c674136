"""Producer of whole epochs: messages and their marker in one transaction, with a fixed id.

A new client first fences all earlier ones (`init_transactions` ends their open transaction) and
then reads the marker, so no commit can happen that it has not seen. A client that was fenced, or
whose commit has an unknown outcome, is dropped; the next one reads the marker again.

Each transaction has its own client. librdkafka ends a transaction by producer id and epoch only, so
a request delayed in the network (and sent again meanwhile) would end whatever transaction the same
client has open on its arrival. The next client has a newer epoch, so the broker refuses the delayed
request. It is opened beside the job, right after the previous commit.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.kafka import transactions
from dagster_jet.connectors.kafka.cluster import Cluster, LastError, client_library, error_of
from dagster_jet.connectors.kafka.markers import Marker, MarkerReader, Owner
from dagster_jet.connectors.kafka.refused_messages import LeftOut, Trying
from dagster_jet.connectors.kafka.topic_limits import SeveralTopics, TopicLimits
from dagster_jet.connectors.kafka.transactions import (
    TRANSACTION_MAX_S,
    TRANSACTION_S,
    FirstRefusal,
    UnansweredError,
    new_client,
    patiently,
    send_rows,
    sink_error,
)
from dagster_jet.contract import CommitContext
from dagster_jet.errors import (
    FencedError,
    JetError,
    RowsRefusedError,
    SinkError,
    SinkUnavailableError,
)
from dagster_jet.system.failpoint import fail_point

_CONNECTS_S = 0.05
"""Time to connect; librdkafka retries only after 500 ms if its connections are not ready."""


@dataclass
class EpochProducer:
    """Producer of one execution, for the epochs of one owner of markers."""

    cluster: Cluster
    topic: str
    marker_topic: str
    owner: Owner
    batch_bytes: int | None = None
    """See `new_client`."""
    several: tuple[str, ...] = ()
    """The topics that messages name, if they do; `topic` is then the text for errors."""
    client: Any = None
    """librdkafka's producer for one transaction, created on demand."""
    timeout_s: int = TRANSACTION_S
    """Time-out of the next transaction, unless the user sets one."""
    _troubles: LastError = field(default_factory=LastError)
    _markers: MarkerReader = field(init=False)
    _newest: dict[int, Marker] | None = None
    """Markers read since others were fenced; None: they are not fenced, nothing may be produced."""
    _began: float | None = None
    """Start of the open transaction, by the monotonic clock."""
    _refusal: FirstRefusal = field(default_factory=FirstRefusal)
    _undecided: tuple[Marker, int] | None = None
    """Marker and timeline of a commit without an answer, which is to be requested again."""
    _opening: threading.Thread | None = None
    """Opens the client of the next transaction. All other calls wait for its end."""

    def __post_init__(self) -> None:
        self._markers = MarkerReader(self.cluster, self.marker_topic, self.owner)

    def commit(
        self,
        marker: Marker,
        context: CommitContext,
        timeline: int,
        is_done: Callable[[Marker], bool],
        rows: Callable[[], Iterator[pa.RecordBatch]],
        left_out: LeftOut | None = None,
    ) -> None:
        """Commits one epoch's rows and its marker in one transaction. Call within `errors_named`.

        Args:
            is_done: whether the timeline's newest marker shows that this is committed.
            rows: rows of `messages.message_columns`; all are checked at their end.
            left_out: the rows that the topic refuses.

        Raises:
            FencedError: a newer execution commits here.
            RowsRefusedError: the topic refuses some rows, and none may be left out.
        """
        if self._undecided is None:
            self._deliver_refused(context)
        newest = self.open().get(timeline)
        if newest is not None and is_done(newest):
            return
        if self._undecided not in (None, (marker, timeline)):
            raise TimeoutError("another epoch's commit was not answered")
        if newest is not None and newest.by_execution > context.execution_id:
            raise FencedError(
                "a newer execution of the job commits to the topic.",
                job=self.owner.job,
                stage=self.owner.sink,
            )
        was_undecided = self._undecided is not None
        try:
            if left_out is not None:
                noted = replace(marker, refused=left_out.memo)
                self._produce(noted, timeline, left_out.rest(rows()))
            elif not was_undecided:
                self._produce(marker, timeline, rows())
            self._undecided = marker, timeline
            patiently(self.client.commit_transaction, partial(len, self.client))
        except client_library().KafkaException as error:
            left_out = self._left_out(error, marker.epoch_id, context, rows, left_out)
            self.commit(marker, context, timeline, is_done, rows, left_out)
            return
        self._undecided = self._began = None
        fail_point("kafka.commit.after")
        self._open_ahead()
        if left_out is not None or was_undecided:
            self._deliver_refused(context)

    def try_out(self) -> None:
        """Begins like a new execution, without a commit, to check that the broker takes the
        transactional id and its time-out. Call within `errors_named`."""
        try:
            self.timeout_s = TRANSACTION_MAX_S  # may be requested later
            self.client = self._new_client()
            patiently(self.client.init_transactions, partial(len, self.client))
        finally:
            self.give_up()

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Raises the client library's errors as `JetError`s. After most of them the next call has a
        new producer."""
        try:
            yield
        except UnansweredError as error:  # the producer stays: the next call resumes
            raise self._error(error.error, error) from error
        except client_library().KafkaException as error:
            self.give_up()
            raise self._error(error_of(error), error) from error
        except (TimeoutError, concurrent.futures.TimeoutError) as error:
            self.give_up()
            raise SinkUnavailableError(
                f"the topic {self.topic!r} cannot be written now: {error}.",
                job=self.owner.job,
                stage=self.owner.sink,
            ) from error
        except BaseException:
            self.give_up()
            raise

    def _produce(self, marker: Marker, timeline: int, rows: Iterable[pa.RecordBatch]) -> None:
        fail_point("kafka.commit.before")
        self._began = time.monotonic()
        self.client.begin_transaction()
        for batch in rows:
            send_rows(self.client, self.topic, batch, partial(len, self.client))
        self.client.produce(
            self.marker_topic,
            marker.value(),
            self.owner.key(timeline),
            partition=self.owner.partition,
        )
        fail_point("kafka.commit.produced")

    # --- messages that the topic refuses ----------------------------------------------------------

    def _left_out(
        self,
        error: Exception,
        epoch_id: int,
        context: CommitContext,
        rows: Callable[[], Iterator[pa.RecordBatch]],
        before: LeftOut | None,
    ) -> LeftOut:
        """Finds the epoch's refused messages and stages them as dead letters; afterwards no
        transaction is open. Raises the error if no message is refused, or may be left out."""
        self.give_up()
        raised = self._error(error_of(error), error)
        refused, is_of_rows = context.refused, isinstance(raised, RowsRefusedError)
        if before or not is_of_rows or refused is None or not refused.may_leave_out:
            raise raised from error
        self.open()
        of = {}
        for topic in self.several or (self.topic,):
            known = self.client.list_topics(topic, timeout=transactions.CALL_S).topics[topic]
            of[topic] = TopicLimits.of(self.cluster, topic, len(known.partitions))
        limits = SeveralTopics("topic", of) if self.several else of[self.topic]
        trying = Trying(self._reopened, self.topic, limits)
        trying.tries(rows())
        if not trying.refused:
            raise raised from error
        self.give_up()
        fail_point("kafka.refused.found")
        memo = refused.stage(epoch_id, trying.refused)
        fail_point("kafka.refused.staged")
        return LeftOut(tuple(trying.batches), memo)

    def _reopened(self) -> tuple[Any, FirstRefusal]:
        self.give_up()
        self.open()
        return self.client, self._refusal

    def _deliver_refused(self, context: CommitContext) -> None:
        """Delivers refused rows of committed epochs, of any execution: the marker keeps the memo
        until then."""
        if context.refused is None:
            return
        for timeline, marker in sorted(self.open().items()):
            if marker.refused:
                fail_point("kafka.refused.deliver")
                context.refused.deliver(marker.refused)
                fail_point("kafka.refused.delivered")
                self.open()
                self._produce(replace(marker, refused=""), timeline, ())
                patiently(self.client.commit_transaction, partial(len, self.client))
                self._began = None
                self._open_ahead()

    def open(self) -> Mapping[int, Marker]:
        """Fences older producers; newest marker by timeline. Call within `errors_named`."""
        self._await_opening()
        if self.client is None:
            self.client = self._new_client()
            with contextlib.suppress(client_library().KafkaException):
                self._connect()
        if self._newest is None:
            patiently(self.client.init_transactions, partial(len, self.client))
            self._read_markers()
        assert self._newest is not None
        return self._newest

    def _connect(self) -> None:
        """Connects for the next call; the client then also knows the topic's partitions."""
        for topic in self.several or (self.topic,):
            self.client.list_topics(topic, timeout=transactions.CALL_S)
        time.sleep(_CONNECTS_S)

    def _read_markers(self) -> None:
        newest = self._markers.newest()
        fail_point("kafka.fenced")
        self._newest = newest

    def _open_ahead(self) -> None:
        """Replaces the client in the background. If that fails, the next commit reports why."""
        done, self.client, self._newest = [self.client], None, None

        def open_next() -> None:
            done.clear()  # closing it takes time, too
            try:
                self.client = self._new_client()
                self._connect()
                self.client.init_transactions(transactions.CALL_S)
                self._read_markers()
            except Exception:  # noqa: BLE001 - the next commit raises it, if it lasts
                self.client = None

        self._opening = threading.Thread(target=open_next, name="jet-kafka-open", daemon=True)
        self._opening.start()

    def _await_opening(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.join()

    def _take_time(self) -> None:
        """Uses the longer time-out if the broker has aborted a transaction by the shorter one."""
        if self._began is not None and time.monotonic() - self._began >= self.timeout_s:
            self.timeout_s = TRANSACTION_MAX_S

    def _new_client(self) -> Any:
        self._refusal = FirstRefusal()
        return new_client(
            self.cluster,
            self.owner.transactional_id,
            self.timeout_s,
            self.batch_bytes,
            **{
                "error_cb": self._troubles,
                "on_delivery": self._refusal,
                "delivery.report.only.error": True,
            },
        )

    def give_up(self) -> None:
        """Drops the producer. Aborts an open transaction if the cluster can be reached; else the
        next producer ends it, as after a crash.

        If a producer is closed while it adds partitions to its transaction, the whole process
        aborts: librdkafka 2.16, rdkafka_txnmgr.c, "Assertion `rk->rk_eos.txn_req_cnt > 0' failed".
        The answer that the client is closed comes on the broker's thread, sometimes before the main
        thread has counted the request. After an abort no partition is added.
        """
        self._await_opening()
        client, self.client = self.client, None
        self._take_time()
        self._newest = self._undecided = self._began = None
        if client is None:
            return
        client.poll(0)  # reports which message was refused
        # A failed or fenced client, or one without a transaction, raises here, which would hide the
        # original error.
        with contextlib.suppress(client_library().KafkaException):
            client.abort_transaction(transactions.CALL_S)
            client.poll(0)

    def _error(self, error: Any, raised: Exception) -> JetError:
        # A commit only reports the number of failed messages.
        refused = self._refusal.take()
        if refused is not None:
            return sink_error(refused, self.topic, self.owner)
        if error is None:
            return SinkError(f"the topic cannot be written: {raised}", stage=self.owner.sink)
        return sink_error(self._troubles.explain(error), self.topic, self.owner)
