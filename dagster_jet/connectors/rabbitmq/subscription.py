"""A connection subscribed to one queue: its deliveries and their acknowledgements."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dagster_jet.connectors.rabbitmq.queue_facts import ask_queue
from dagster_jet.connectors.rabbitmq.server import RabbitServer, hang_up
from dagster_jet.contract import Backlog
from dagster_jet.system.failpoint import fail_point

_WAIT_S = 0.5


@dataclass(frozen=True)
class Delivery:
    """One delivery of a message."""

    tag: int
    body: bytes
    method: Any
    properties: Any


class Subscription:
    """Subscription for one thread. It is unusable after any error: `close` it and make another.

    A delivery is acknowledged by its tag on the channel. If the channel breaks, the server
    redelivers all messages that it regards as unacknowledged.
    """

    def __init__(self, server: RabbitServer, queue: str, prefetch: int) -> None:
        self.name = uuid.uuid4().hex[:12]
        self._queue, self._prefetch = queue, prefetch
        self._came: list[Delivery] = []
        self._tags: dict[str, list[int]] = {}
        """Delivery tags by message id; publishers may send one id twice."""
        self._open: dict[int, None] = {}
        """All unacknowledged tags, in order."""
        self._backlog: int | None = None
        """Number of messages of the backlog, as counted, that have not come yet."""
        self._is_cancelled = False
        self._connection = server.connect()
        try:
            ask_queue(self._connection, queue)
            self._channel = self._connection.channel()
            self._channel.basic_qos(prefetch_count=prefetch)
            self._channel.add_on_cancel_callback(self._cancelled)
            self._channel.basic_consume(queue, self._take)
        except BaseException:
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        """True if the server has ended the subscription. If it closed the channel because a message
        was held too long, pika does not report it to a client that only waits for deliveries."""
        return self._is_cancelled or not self._channel.is_open

    def receive(self, *, wait: bool = True) -> list[Delivery]:
        """Returns new deliveries; waits up to half a second for the first."""
        self._connection.process_data_events(_WAIT_S if wait and not self._came else 0)
        came, self._came = self._came, []
        return came

    def receive_backlog(self) -> tuple[list[Delivery], Backlog]:
        """Returns new deliveries, and the state of the backlog counted at the first call. Does not
        wait if the prefetch window is full: no delivery comes before an acknowledgement."""
        if self._backlog is None:
            ready = self._ready()
            if ready is None:
                return self.receive(), Backlog.WAITING
            self._backlog = ready + len(self._came)
        came = self.receive(wait=not self._is_full)
        self._backlog -= len(came)
        if self._backlog <= 0:
            return came, Backlog.READ
        if self._is_full:
            return came, Backlog.HELD
        if came or self._ready() != 0 or self._came:
            return came, Backlog.WAITING
        return came, Backlog.READ  # the others have expired, or another consumer took them

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= self._prefetch

    def _ready(self) -> int | None:
        """Number of messages ready for delivery; those delivered to us before have then arrived.
        None if unknown: if a quorum queue's leader does not answer at once, the server reports no
        messages and no consumers, although we are a consumer.

        The queue answers while deliveries wait for our channel. The channel may forward this answer
        before them, but forwards the answer to a second request after them.
        """
        found = self._channel.queue_declare(self._queue, passive=True).method
        self._channel.queue_declare(self._queue, passive=True)
        self._connection.process_data_events(0)
        return int(found.message_count) if found.consumer_count else None

    def belongs_to(self, message_id: str, delivery: Delivery) -> None:
        """Notes the message of a delivery."""
        self._tags.setdefault(message_id, []).append(delivery.tag)

    def acknowledge(self, message_ids: Collection[str]) -> set[str]:
        """Acknowledges all deliveries of these messages, and returns the ids that had any.

        AMQP does not confirm an acknowledgement. But the server answers the passive declaration
        after it, and the queue's process receives both in order. After the answer none of these
        messages is redelivered as long as the server lives. For a quorum queue that is its leader:
        if it is lost before a majority has the acknowledgement, the next leader may redeliver.
        """
        found = {one for one in message_ids if one in self._tags}
        if not found:
            return found
        tags = {tag for one in found for tag in self._tags.pop(one)}
        fail_point("rabbitmq.acknowledge.before")
        upto = 0
        for tag in self._open:  # in order: one acknowledgement for all up to the first that stays
            if tag not in tags:
                break
            upto = tag
        if upto:
            self._channel.basic_ack(upto, multiple=True)
        for tag in sorted(tag for tag in tags if tag > upto):
            self._channel.basic_ack(tag)
        for tag in tags:
            del self._open[tag]
        fail_point("rabbitmq.acknowledge.sent")
        self._channel.queue_declare(self._queue, passive=True)
        fail_point("rabbitmq.acknowledge.after")
        return found

    def close(self) -> None:
        hang_up(self._connection)

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._open[method.delivery_tag] = None
        self._came.append(Delivery(method.delivery_tag, body, method, properties))

    def _cancelled(self, frame: Any) -> None:
        """Called if the queue was deleted or has moved to another node."""
        self._is_cancelled = True
