"""A producer of whole epochs: messages and their marker in one transaction, by one fixed id.

Who opens a client fences all that were there before (`init_transactions` ends their open
transaction) and then reads the marker: so nobody can commit what the reader of a marker has not
seen. A client that was fenced, or whose commit has an unknown outcome, is given up; the next one
reads the marker again.

Each transaction has a client of its own. librdkafka ends a transaction by its producer id and epoch
and by nothing else, so a request that the network has kept (it was sent again meanwhile) would end
whatever transaction the same client has open when it arrives. The next client has a newer epoch,
and the broker refuses it. It is opened beside the job, right after the commit before.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.contract import CommitContext
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
    MarkerReader,
    Owner,
)
from dagster_jet.connectors.staging import Segment, rows_of
from dagster_jet.errors import (
    ArtifactLostError,
    FencedError,
    JetError,
    Reaction,
    SinkError,
    SinkUnavailableError,
)
from dagster_jet.system.failpoint import fail_point

TRANSACTION_S, TRANSACTION_MAX_S = 60, 600
"""The broker gives a transaction up after so long, and others wait for one whose producer has died.
An epoch that was not produced in the first time gets the second one; a broker's own limit is 15
minutes unless changed."""
SOCKET_MS = 10_000
"""A request is sent again on a new connection after so long. librdkafka's own default for producers
of transactions is `transaction.timeout.ms`."""
MESSAGE_BYTES_MAX = 100_000_000
SILENCE_S = 10.0
"""Who does not get on for so long says so, and is called again: an execution that ends waits for a
call, not for a cluster."""
_CALL_S, _FULL_S = 2.0, 0.05
_CONNECTS_S = 0.05
"""librdkafka asks again after 500 ms where its connections are not ready."""


class UnansweredError(Exception):
    """A call of the producer's that was begun; the same call goes on with it."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.str())
        self.error = error


class Advance:
    """Whether a producer gets rid of its messages, of which so many are left."""

    def __init__(self, messages_left: Callable[[], int]) -> None:
        self._messages_left = messages_left
        self._left, self._since = messages_left(), time.monotonic()

    def has_stopped(self) -> bool:
        left = self._messages_left()
        # Fewer than ever: errors of the connection wait in the producer's queue, too, and are
        # counted there; of those a lost network makes new ones for ever.
        if left < self._left:
            self._left, self._since = left, time.monotonic()
        return time.monotonic() - self._since >= SILENCE_S


class FirstRefusal:
    """What the cluster has said of the first message that it has not taken, for good.

    An object of its own: a producer that knew its owner would end with some garbage collection,
    on any thread, and not when it is given up.
    """

    def __init__(self) -> None:
        self._error: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        """A delivery report. Messages that are only purged are not refused."""
        if self._error is None and error is not None and is_lasting(error):
            self._error = error

    def take(self) -> Any:
        """The error, once; None: nothing was refused."""
        error, self._error = self._error, None
        return error


@dataclass
class EpochProducer:
    """Of one execution, for the epochs of one owner of markers."""

    cluster: Cluster
    topic: str
    marker_topic: str
    owner: Owner
    client: Any = None
    """librdkafka's producer, once it is needed; for one transaction."""
    timeout_s: int = TRANSACTION_S
    """Of the next transaction, where the user has not given one."""
    _troubles: Troubles = field(default_factory=Troubles)
    _markers: MarkerReader = field(init=False)
    _newest: dict[int, Marker] | None = None
    """The markers since others are fenced off; None: they are not, nothing may be produced."""
    _began: float | None = None
    """When the open transaction was begun, by the monotonic clock."""
    _refusal: FirstRefusal = field(default_factory=FirstRefusal)
    _undecided: tuple[Marker, int] | None = None
    """A marker and its timeline, whose commit was asked for and not answered: to be asked again."""
    _opening: threading.Thread | None = None
    """Opens the client of the next transaction. All else waits for its end."""

    def __post_init__(self) -> None:
        self._markers = MarkerReader(self.cluster, self.marker_topic, self.owner)

    def commit(
        self,
        marker: Marker,
        context: CommitContext,
        timeline: int,
        is_done: Callable[[Marker], bool],
        rows: Callable[[], Iterator[pa.RecordBatch]],
    ) -> None:
        """One epoch's rows and its marker, in one transaction. Within `errors_named`.

        Args:
            is_done: whether the newest marker of the timeline says that this is committed.
            rows: as `messages.message_columns` makes them; all are checked when they have ended.

        Raises:
            FencedError: a newer execution commits here.
        """
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
        if self._undecided is None:
            self._produce(marker, timeline, rows)
        self._undecided = marker, timeline
        patiently(self.client.commit_transaction, partial(len, self.client))
        self._undecided = self._began = None
        fail_point("kafka.commit.after")
        self._open_ahead()

    def try_out(self) -> None:
        """Begins as a new execution does, and commits nothing: whether the broker takes the
        transactional id and its time-out is known before there is anything to lose. Within
        `errors_named`."""
        try:
            self.timeout_s = TRANSACTION_MAX_S  # what may be asked for later
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
        except UnansweredError as error:  # the producer stays: the next call asks on
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

    def _produce(
        self, marker: Marker, timeline: int, rows: Callable[[], Iterator[pa.RecordBatch]]
    ) -> None:
        fail_point("kafka.commit.before")
        self._began = time.monotonic()
        self.client.begin_transaction()
        for batch in rows():
            send_rows(self.client, self.topic, batch, partial(len, self.client))
        self.client.produce(
            self.marker_topic,
            marker.value(),
            self.owner.key(timeline),
            partition=self.owner.partition,
        )
        fail_point("kafka.commit.produced")

    def open(self) -> Mapping[int, Marker]:
        """Locks older producers out; by timeline, the newest marker. Within `errors_named`."""
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
        """So that the next call finds connections. The client also knows the topic's partitions
        then."""
        self.client.list_topics(self.topic, timeout=_CALL_S)
        time.sleep(_CONNECTS_S)

    def _read_markers(self) -> None:
        newest = self._markers.newest()
        fail_point("kafka.fenced")
        self._newest = newest

    def _open_ahead(self) -> None:
        """Replaces the client, beside whatever comes next. Where that fails, the next commit finds
        out why."""
        done, self.client, self._newest = [self.client], None, None

        def open_next() -> None:
            done.clear()  # its end takes time, too
            try:
                self.client = self._new_client()
                self._connect()
                self.client.init_transactions(_CALL_S)
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
        """The broker has given a transaction up that was open for too long."""
        if self._began is not None and time.monotonic() - self._began >= self.timeout_s:
            self.timeout_s = TRANSACTION_MAX_S

    def _new_client(self) -> Any:
        self._refusal = FirstRefusal()
        return new_client(
            self.cluster,
            self.owner.transactional_id,
            self.timeout_s,
            **{
                "error_cb": self._troubles,
                "on_delivery": self._refusal,
                "delivery.report.only.error": True,
            },
        )

    def give_up(self) -> None:
        """Lets go of the producer. A transaction that is open is given up, too, if the cluster can
        be told; otherwise the next producer ends it, as after a crash.

        A producer that goes while it adds partitions to its transaction ends the whole process:
        librdkafka 2.16, rdkafka_txnmgr.c, "Assertion `rk->rk_eos.txn_req_cnt > 0' failed". The
        answer, that the client ends, comes on the broker's thread, at times before the main thread
        has counted the request. In one that is giving its transaction up nothing is added any more.
        """
        self._await_opening()
        client, self.client = self.client, None
        self._take_time()
        self._newest = self._undecided = self._began = None
        if client is None:
            return
        client.poll(0)  # which message was refused
        # One that has failed for good, was fenced, or has no transaction, says so: it hides why we
        # are here.
        with contextlib.suppress(client_library().KafkaException):
            client.abort_transaction(_CALL_S)

    def _error(self, error: Any, raised: Exception) -> JetError:
        # Of messages that were not taken a commit only says how many.
        refused = self._refusal.take()
        if refused is not None:
            return sink_error(refused, self.topic, self.owner)
        if error is None:
            return SinkError(f"the topic cannot be written: {raised}", stage=self.owner.sink)
        return sink_error(self._troubles.explain(error), self.topic, self.owner)


def sink_error(error: Any, topic: str, owner: Owner) -> JetError:
    """What an error of the cluster means for a sink, whose transactional id is the owner's."""
    if not is_lasting(error):
        # Fenced by somebody, too: whoever it is, the marker says what is committed.
        return SinkUnavailableError(
            f"the topic {topic!r} cannot be written now: {said(error)}.",
            job=owner.job,
            stage=owner.sink,
        )
    cure = (
        "Correct the credentials, the rights (WRITE on the topic, the marker topic and the "
        f"transactional id {owner.transactional_id!r}) or the topic's settings."
    )
    if error.code() == client_library().KafkaError.INVALID_TRANSACTION_TIMEOUT:
        cure = (
            "transaction.timeout.ms is above the broker's transaction.max.timeout.ms: raise "
            'that, or ask for less: options={"transaction.timeout.ms": "60000"}.'
        )
    verdict = said(error)
    if error.code() == client_library().KafkaError.MSG_SIZE_TOO_LARGE:
        verdict = "a message, or a batch of them, is larger than max.message.bytes of the topic"
        cure = (
            "Raise that, and start again: what is decided is kept and committed then. If no row is "
            'so large, let fewer travel together: options={"batch.size": "100000"}.'
        )
    found = SinkError(
        f"the topic {topic!r} cannot be written: {verdict}.",
        job=owner.job,
        stage=owner.sink,
        cure=cure,
    )
    found.reaction = Reaction.FAIL
    return found


def new_client(cluster: Cluster, transactional_id: str, timeout_s: int, **more: Any) -> Any:
    """librdkafka's producer of transactions; it connects by itself.

    Args:
        timeout_s: the broker gives a transaction up after so long, unless the user says otherwise.
    """
    settings = cluster.settings(
        **{"transactional.id": transactional_id, "enable.idempotence": True, "linger.ms": 5, **more}
    )
    timeout_ms = int(settings.setdefault("transaction.timeout.ms", timeout_s * 1000))
    settings.setdefault("socket.timeout.ms", min(SOCKET_MS, timeout_ms))
    # Where Java's producers put a key, and Spark's: whoever joins topics by partition relies on it.
    settings.setdefault("partitioner", "murmur2_random")
    # How large a message may be is the topic's business.
    settings.setdefault("message.max.bytes", MESSAGE_BYTES_MAX)
    return client_library().Producer(settings)


def send_rows(
    client: Any, topic: str, batch: pa.RecordBatch, messages_left: Callable[[], int]
) -> None:
    """Hands rows, as `messages.message_columns` makes them, to a producer in a transaction.

    Raises:
        TimeoutError: the cluster takes none for `SILENCE_S`.
    """
    columns = batch.to_pydict()
    nothing = [None] * batch.num_rows
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
        advance: Advance | None = None
        while True:
            try:
                client.produce(topic, value, key, **more)
                break
            except BufferError:  # its queue is full: it is sending
                advance = advance or Advance(messages_left)
                if advance.has_stopped():
                    raise TimeoutError("the cluster takes no messages") from None
                client.poll(_FULL_S)
    client.poll(0)


def staged_rows(segments: Sequence[Segment], context: CommitContext) -> Iterator[pa.RecordBatch]:
    """Raises `ArtifactLostError`; where that is accepted, leaves the segment out and reports it."""
    for segment in segments:
        try:
            # All of a segment is checked before any of it counts: the marker comes last.
            yield from rows_of([segment])
        except ArtifactLostError:
            if not context.accept_loss:
                raise
            context.report_lost(segment.artifact)


def patiently(call: Callable[[float], Any], messages_left: Callable[[], int]) -> None:
    """A call of the producer's that is resumed when it is made again, for as long as the cluster
    takes messages. Raises `UnansweredError`: it can be resumed later, too."""
    advance = Advance(messages_left)
    while True:
        try:
            call(_CALL_S)
            return
        except client_library().KafkaException as error:
            raised = error_of(error)
            if raised is None or raised.code() != client_library().KafkaError._TIMED_OUT:
                raise
            if advance.has_stopped():
                raise UnansweredError(raised) from None
