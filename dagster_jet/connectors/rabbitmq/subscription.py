"""One connection that is subscribed to one queue: what it has delivered, and acknowledges."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagster_jet.connectors.contract import Backlog
from dagster_jet.connectors.rabbitmq.queue_facts import ask_queue
from dagster_jet.connectors.rabbitmq.server import RabbitServer
from dagster_jet.system.failpoint import fail_point

_WAIT_S = 0.5


@dataclass(frozen=True)
class Delivery:
    """A message, as it came this time."""

    tag: int
    body: bytes
    method: Any
    properties: Any


class Subscription:
    """For one thread. After any error it is of no use any more: `close` it, and make another.

    A delivery is acknowledged by the number that it has on its channel. If the channel breaks, the
    server delivers again what it holds to be unacknowledged.
    """

    def __init__(self, server: RabbitServer, queue: str, prefetch: int) -> None:
        self.name = uuid.uuid4().hex[:12]
        self._queue, self._prefetch = queue, prefetch
        self._came: list[Delivery] = []
        self._tags: dict[str, list[int]] = {}
        """By the message's id: publishers may send one twice."""
        self._open: dict[int, None] = {}
        """All tags that are not acknowledged, in order."""
        self._backlog: int | None = None
        """How many of the messages that were there when it was counted have not come yet."""
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
        """The server has ended it: nothing comes any more. Of a channel that it has closed, because
        a message was held for too long, pika says nothing where only deliveries are waited for."""
        return self._is_cancelled or not self._channel.is_open

    def receive(self, *, wait: bool = True) -> list[Delivery]:
        """What has come; if nothing has, waits for about half a second."""
        self._connection.process_data_events(_WAIT_S if wait and not self._came else 0)
        came, self._came = self._came, []
        return came

    def receive_backlog(self) -> tuple[list[Delivery], Backlog]:
        """What has come, and what is left of what was there at the first call. A full window is
        not waited for: nothing comes before something is acknowledged."""
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
        return came, Backlog.READ  # the others have expired, or were taken by somebody else

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= self._prefetch

    def _ready(self) -> int | None:
        """How many messages the queue has handed to nobody; what it has handed to us has come then.
        None: it does not say. Where a quorum queue's leader does not answer at once, the server
        says that there are no messages, and no consumers: but we are one.

        The queue answers while deliveries wait for our channel, which may pass its answer on before
        them; it passes on an answer to a second question behind them.
        """
        found = self._channel.queue_declare(self._queue, passive=True).method
        self._channel.queue_declare(self._queue, passive=True)
        self._connection.process_data_events(0)
        return int(found.message_count) if found.consumer_count else None

    def belongs_to(self, message_id: str, delivery: Delivery) -> None:
        """Notes whose delivery it is."""
        self._tags.setdefault(message_id, []).append(delivery.tag)

    def acknowledge(self, message_ids: Collection[str]) -> set[str]:
        """Acknowledges all deliveries of these messages, and returns those that there were.

        AMQP does not answer an acknowledgement. It answers the question for the queue that follows
        on the same channel, and the queue's process gets both in order: after the answer nothing of
        this is delivered again, as long as the server lives. Of a quorum queue that is its leader:
        one that is lost before a majority has it may be followed by one that delivers again.
        """
        found = {one for one in message_ids if one in self._tags}
        if not found:
            return found
        tags = {tag for one in found for tag in self._tags.pop(one)}
        fail_point("rabbitmq.acknowledge.before")
        upto = 0
        for tag in self._open:  # in order: up to the first that stays, one word for all
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
        with suppress(Exception):  # it may be the connection that has failed
            self._connection.close()

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._open[method.delivery_tag] = None
        self._came.append(Delivery(method.delivery_tag, body, method, properties))

    def _cancelled(self, frame: Any) -> None:
        """The queue was deleted, or has moved to another node."""
        self._is_cancelled = True
