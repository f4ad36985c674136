"""librdkafka's transactional producer: creation, waiting, and the meaning of its errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    client_library,
    error_of,
    is_lasting,
    said,
)
from dagster_jet.connectors.kafka.markers import Owner
from dagster_jet.contract import DECIDED_CURE
from dagster_jet.errors import JetError, Reaction, RowsRefusedError, SinkError, SinkUnavailableError

TRANSACTION_S, TRANSACTION_MAX_S = 60, 600
"""Time-outs of a transaction in seconds. The broker aborts it afterwards; until then others wait
for one whose producer has died. An epoch that exceeds the first gets the second. A broker's own
limit is 15 minutes by default."""
SOCKET_MS = 10_000
"""Ms after which a request is sent again on a new connection. librdkafka's default for
transactional producers is `transaction.timeout.ms`."""
MESSAGE_BYTES_MAX = 100_000_000
_BATCH_BYTES = 1_000_000
"""librdkafka's default."""
SILENCE_S = 10.0
"""Seconds without progress after which a call fails, to be repeated: an execution that ends waits
for a call, not for a cluster."""
CALL_S, _FULL_S = 2.0, 0.05
_UNDECIDED_CURE = (
    "a start reads the topic's settings, and sends messages that the topic does not accept to "
    "the sink's dead-letter sink (write_to(...).dead_letter_to(...)), if it has one."
)


class UnansweredError(Exception):
    """A call of the producer has begun; repeating it resumes it."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.str())
        self.error = error


class Advance:
    """Tracks whether a producer's number of unsent messages decreases."""

    def __init__(self, messages_left: Callable[[], int]) -> None:
        self._messages_left = messages_left
        self._left, self._since = messages_left(), time.monotonic()

    def has_stopped(self) -> bool:
        left = self._messages_left()
        # Compares with the minimum: connection errors are also counted in the producer's queue, and
        # a lost network adds new ones forever.
        if left < self._left:
            self._left, self._since = left, time.monotonic()
        return time.monotonic() - self._since >= SILENCE_S


class FirstRefusal:
    """First permanent delivery error of a producer.

    A separate object: a producer that referred to its owner would end in a garbage collection, on
    any thread, instead of when it is dropped.
    """

    def __init__(self) -> None:
        self._error: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        """Delivery report. Messages that are only purged are not refused."""
        if self._error is None and error is not None and is_lasting(error):
            self._error = error

    @property
    def is_known(self) -> bool:
        return self._error is not None

    def take(self) -> Any:
        """Returns the error once; None if nothing was refused."""
        error, self._error = self._error, None
        return error


def refuses_message(error: Any) -> bool:
    """True if the error concerns one message, and the topic may take others."""
    return error is not None and error.code() in _of_messages()


def _of_messages() -> dict[int, tuple[str, str]]:
    """Description and cure by error code."""
    code = client_library().KafkaError
    return {
        code.MSG_SIZE_TOO_LARGE: (
            "a message, or a batch of them, is larger than max.message.bytes of the topic",
            "Raise max.message.bytes; or, if no single row is that large, use "
            'options={"batch.size": "100000"}',
        ),
        code.INVALID_TIMESTAMP: (
            "the time of a message is too far ahead, or too long ago",
            "Raise message.timestamp.after.max.ms or message.timestamp.before.max.ms of the topic",
        ),
        code._UNKNOWN_PARTITION: (
            "a message is for a partition that the topic does not have",
            "Add partitions to the topic",
        ),
        code.INVALID_RECORD: (
            "a message is not one that the topic takes (a compacted topic takes none without key)",
            "Change the topic's settings",
        ),
    }


def sink_error(error: Any, topic: str, owner: Owner, *, is_decided: bool = True) -> JetError:
    """A sink's error for a cluster's error; the transactional id is the owner's."""
    of = {"job": owner.job, "stage": owner.sink}
    if not is_lasting(error):
        # Also if fenced by anybody: the marker shows what is committed.
        return SinkUnavailableError(
            f"the topic {topic!r} cannot be written now: {said(error)}.", **of
        )
    if refuses_message(error):
        verdict, cure = _of_messages()[error.code()]
        then = DECIDED_CURE if is_decided else _UNDECIDED_CURE
        says = f"the topic {topic!r} cannot be written: {verdict}. Nothing of the epoch is visible."
        return RowsRefusedError(says, **of, cure=f"{cure}, and start again; {then}")
    cure = (
        "Correct the credentials, the rights (WRITE on the topic, the marker topic and the "
        f"transactional id {owner.transactional_id!r}) or the topic's settings."
    )
    if error.code() == client_library().KafkaError.INVALID_TRANSACTION_TIMEOUT:
        cure = (
            "transaction.timeout.ms is above the broker's transaction.max.timeout.ms. Raise the "
            'broker\'s setting, or lower the option: options={"transaction.timeout.ms": '
            '"60000"}.'
        )
    found = SinkError(f"the topic {topic!r} cannot be written: {said(error)}.", **of, cure=cure)
    found.reaction = Reaction.FAIL
    return found


def new_client(
    cluster: Cluster,
    transactional_id: str,
    timeout_s: int,
    batch_bytes: int | None = None,
    **more: Any,
) -> Any:
    """Creates librdkafka's transactional producer; it connects by itself.

    Args:
        timeout_s: the broker aborts a transaction after this time, unless the user sets another.
        batch_bytes: maximum size of a batch, unless the user sets another: librdkafka does not
            split a batch that is too large for the topic.
    """
    settings = cluster.settings(
        **{"transactional.id": transactional_id, "enable.idempotence": True, "linger.ms": 5, **more}
    )
    timeout_ms = int(settings.setdefault("transaction.timeout.ms", timeout_s * 1000))
    settings.setdefault("socket.timeout.ms", min(SOCKET_MS, timeout_ms))
    # Partitioner of Java's producers and of Spark, which joins of topics by partition rely on.
    settings.setdefault("partitioner", "murmur2_random")
    # The topic limits the size of messages.
    settings.setdefault("message.max.bytes", MESSAGE_BYTES_MAX)
    if batch_bytes is not None:
        settings.setdefault("batch.size", min(batch_bytes, _BATCH_BYTES))
    return client_library().Producer(settings)


def send_rows(
    client: Any, topic: str, batch: pa.RecordBatch, messages_left: Callable[[], int]
) -> None:
    """Produces rows of `messages.message_columns` in the producer's transaction.

    Args:
        topic: of the messages that do not name theirs.

    Raises:
        TimeoutError: the cluster takes no message for `SILENCE_S`.
    """
    columns = batch.to_pydict()
    nothing = [None] * batch.num_rows
    keys, values = columns["__key"], columns["__value"]
    headers = columns.get("__headers", nothing)
    partitions = columns.get("__partition", nothing)
    times = columns.get("__timestamp", nothing)
    topics = columns.get("__topic", nothing)
    for key, value, header, partition, at_ms, to in zip(
        keys, values, headers, partitions, times, topics, strict=True
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
                client.produce(to or topic, value, key, **more)
                break
            except BufferError:  # the producer's queue is full
                advance = advance or Advance(messages_left)
                if advance.has_stopped():
                    raise TimeoutError("the cluster takes no messages") from None
                client.poll(_FULL_S)
    client.poll(0)


def patiently(call: Callable[[float], Any], messages_left: Callable[[], int]) -> None:
    """Repeats a resumable call of the producer for as long as the cluster takes messages. Raises
    `UnansweredError`, after which the call can be resumed, too."""
    advance = Advance(messages_left)
    while True:
        try:
            call(CALL_S)
            return
        except client_library().KafkaException as error:
            raised = error_of(error)
            if raised is None or raised.code() != client_library().KafkaError._TIMED_OUT:
                raise
            if advance.has_stopped():
                raise UnansweredError(raised) from None
