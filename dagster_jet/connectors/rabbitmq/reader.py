"""The driver's side of a queue: takes deliveries, hands out what is new, acknowledges what a
snapshot has.

When an id may be forgotten: once the server has answered behind its acknowledgement
(`Subscription.acknowledge`) it is one of the newest `REMEMBERED_MAX`: a server that is killed may
deliver again what it has not written down yet. Without that answer, because
the connection broke, or because it was an earlier process that had the message, it is kept until it
is delivered again, or until a connection has stood for `UNPROVEN_S` since then. Newer ids do not
push it out: a frozen process may hold its messages for long while others go by.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.contract import BadRowRule, Lag, SourceFrame, SourceReader
from dagster_jet.connectors.messages import ReadMessages
from dagster_jet.connectors.rabbitmq.columns import (
    POSITION_COLUMN,
    Message,
    seconds_of,
    table_of,
    texts_of,
)
from dagster_jet.connectors.rabbitmq.server import RabbitServer
from dagster_jet.connectors.rabbitmq.subscription import Delivery, Subscription
from dagster_jet.connectors.values import JsonObjects, RawValues
from dagster_jet.errors import SourceError, SourceUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REMEMBERED_MAX = 40_000
"""More than a server has not written down yet: `queue_index_max_journal_entries` is 32,768. Of
10,000 that it had answered for, all came again after a SIGKILL at once; after 0.3 s none."""
UNPROVEN_S = 86_400.0
"""Of time with a connection: an outage of days does not count."""
_SHOWN = 80


@dataclass(frozen=True)
class Reading:
    """What users have said."""

    server: RabbitServer
    queue: str
    values: JsonObjects | RawValues
    metadata: bool
    prefetch: int
    needs_ids: bool
    """For exactly once: a message is known by its id when it comes again."""


@dataclass(frozen=True)
class Found:
    """What a poll has brought."""

    new: tuple[Message, ...]
    proven: tuple[str, ...]
    """Of messages that came again although a snapshot has them: acknowledged by now."""
    connected_s: float
    """For how long the connection has stood since the last poll."""


@dataclass
class RabbitReader(SourceReader):
    """Of one execution. `_subscription` and `_seen_at` belong to the source's own thread."""

    reading: Reading
    job: str
    stage: str
    bad_rows: BadRowRule | None
    read: ReadMessages = field(default_factory=lambda: ReadMessages(REMEMBERED_MAX))
    _waiting: dict[str, Message] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _subscription: Subscription | None = None
    _connected_s: float = 0.0
    """For how long a connection has stood, in all executions of the job."""
    _seen_at: float | None = None
    """When it stood last, by a clock of this process."""

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self.read.restore(position["remembered"], position["unproven"])
        self._connected_s = position["connected_s"]

    # --- on the source's own thread ---------------------------------------------------------------

    def poll(self) -> Found:
        with self._server_errors():
            subscription = self._subscribed()
            if subscription.is_cancelled:
                self._hang_up()
                raise SourceUnavailableError(
                    f"the server has ended the subscription to {self.reading.queue!r}.",
                    job=self.job,
                    stage=self.stage,
                )
            new: list[Message] = []
            again: dict[str, None] = {}
            for delivery in subscription.receive():
                message_id = self._id_of(delivery)
                subscription.belongs_to(message_id, delivery)
                if self.read.is_acknowledged(message_id):
                    again[message_id] = None
                else:
                    new.append(self._message(message_id, delivery, subscription))
            subscription.acknowledge(again)
            return Found(tuple(new), tuple(again), self._stood())

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        """By id: a delivery on a connection that broke is acknowledged when it comes again."""
        with self._server_errors():
            subscription = self._subscription
            proven = set() if subscription is None else subscription.acknowledge(messages.keys())
        self.read.acknowledged({one: messages[one] for one in messages if one in proven})
        unproven = {one: messages[one] for one in messages if one not in proven}
        self.read.acknowledged(unproven, unproven_since=self._connected_s)

    def close(self) -> None:
        self._hang_up()

    def _subscribed(self) -> Subscription:
        if self._subscription is None:
            reading = self.reading
            self._subscription = Subscription(reading.server, reading.queue, reading.prefetch)
            self._seen_at = None
        return self._subscription

    def _stood(self) -> float:
        now = time.monotonic()
        seen_at, self._seen_at = self._seen_at, now
        return 0.0 if seen_at is None else now - seen_at

    def _hang_up(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    @contextmanager
    def _server_errors(self) -> Iterator[None]:
        """After an error the connection is given up; the error is what it means for a job."""
        reading = self.reading
        try:
            with reading.server.as_source_errors(reading.queue, self.job, self.stage):
                yield
        except BaseException:
            self._hang_up()
            raise

    def _id_of(self, delivery: Delivery) -> str:
        if not self.reading.needs_ids:
            return uuid.uuid4().hex
        if delivery.properties.message_id:
            return str(delivery.properties.message_id)
        raise SourceError(
            f"a message of the queue {self.reading.queue!r} has no message_id, so that it would "
            f"count twice when it is delivered again: {_beginning(delivery.body)}",
            job=self.job,
            stage=self.stage,
            cure='Have its publisher set one, unique for each message; or ask for guarantee="at-'
            'least-once". It is still in the queue.',
        )

    def _message(self, message_id: str, delivery: Delivery, subscription: Subscription) -> Message:
        properties, method = delivery.properties, delivery.method
        return Message(
            message_id,
            delivery.body,
            f"{subscription.name}/{delivery.tag}",
            method.exchange,
            method.routing_key,
            method.redelivered,
            seconds_of(properties.timestamp),
            texts_of(properties.headers),
        )

    # --- on the execution's threads ---------------------------------------------------------------

    def accept(self, found: Found) -> None:
        self._connected_s += found.connected_s
        self.read.acknowledged(dict.fromkeys(found.proven))
        self.read.forget_unproven(self._connected_s - UNPROVEN_S)
        for message in found.new:
            if self.read.deliver(message.message_id, message.handle):
                self._waiting[message.message_id] = message
                self._waiting_bytes += len(message.body)

    def waiting(self) -> Lag:
        count = len(self._waiting)
        return Lag(count, {"messages": count}, self._waiting_bytes)

    def plan(self, max_rows: int) -> tuple[Message, ...] | None:
        count = min(len(self._waiting), max(1, max_rows))
        taken = [self._waiting.pop(next(iter(self._waiting))) for _ in range(count)]
        self._waiting_bytes -= sum(len(message.body) for message in taken)
        self.read.handed_out({message.message_id: message.handle for message in taken})
        return tuple(taken) or None

    def frame(self, spark: SparkSession, split: tuple[Message, ...]) -> SourceFrame:
        from pyspark.sql import functions as F

        messages, position = self._messages(spark, split), F.col(POSITION_COLUMN)
        frames = self.reading.values.frames(messages, self.bad_rows, self.stage, position)
        return replace(frames, rows=frames.rows.drop(POSITION_COLUMN))

    def locate_bad_row(self, spark: SparkSession, split: tuple[Message, ...]) -> str | None:
        from pyspark.sql import functions as F

        messages = self._messages(spark, split)
        return self.reading.values.first_bad(messages, F.col(POSITION_COLUMN))

    def _messages(self, spark: SparkSession, split: tuple[Message, ...]) -> DataFrame:
        reading = self.reading
        return spark.createDataFrame(table_of(split, reading.queue, with_metadata=reading.metadata))

    def verify(self, split: Any, rows: int) -> None:
        """A split is the messages themselves."""

    def position(self) -> dict[str, Any]:
        return {
            "remembered": self.read.remembered(),
            "unproven": self.read.unproven(),
            "connected_s": self._connected_s,
        }

    def unacknowledged(self) -> dict[str, Any]:
        return self.read.unacknowledged()

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        self.read.restore_unacknowledged(messages)


def _beginning(body: bytes) -> str:
    return body[:_SHOWN].decode(errors="replace")
