"""One connection that is subscribed to one queue: what it has delivered, and acknowledges."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
        self._queue = queue
        self._came: list[Delivery] = []
        self._tags: dict[str, list[int]] = {}
        """By the message's id: publishers may send one twice."""
        self._open: dict[int, None] = {}
        """All tags that are not acknowledged, in order."""
        self.is_cancelled = False
        self._connection = server.connect()
        try:
            self._channel = self._connection.channel()
            self._channel.queue_declare(queue, passive=True)
            self._channel.basic_qos(prefetch_count=prefetch)
            self._channel.add_on_cancel_callback(self._cancelled)
            self._channel.basic_consume(queue, self._take)
        except BaseException:
            self.close()
            raise

    def receive(self) -> list[Delivery]:
        """What has come; waits for about half a second if nothing has."""
        self._connection.process_data_events(_WAIT_S if not self._came else 0)
        came, self._came = self._came, []
        return came

    def belongs_to(self, message_id: str, delivery: Delivery) -> None:
        """Notes whose delivery it is."""
        self._tags.setdefault(message_id, []).append(delivery.tag)

    def acknowledge(self, message_ids: Collection[str]) -> set[str]:
        """Acknowledges all deliveries of these messages, and returns those that there were.

        AMQP does not answer an acknowledgement. It answers the question for the queue that follows
        on the same channel, and the queue's process gets both in order: after the answer nothing of
        this is delivered again, as long as the server lives.
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
        self.is_cancelled = True
