"""Reader of a queue: receives deliveries, returns new messages, acknowledges those in a snapshot.

An acknowledgement is proven once the server has answered a request after it
(`Subscription.acknowledge`). A killed server may redeliver if it had not written it to disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.message_reader import Found, MessageReader
from dagster_jet.connectors.rabbitmq.message_table import Message, seconds_of, table_of, texts_of
from dagster_jet.connectors.rabbitmq.server import RabbitServer
from dagster_jet.connectors.rabbitmq.subscription import Delivery, Subscription
from dagster_jet.connectors.values import JsonObjects, RawValues
from dagster_jet.contract import BadRowRule
from dagster_jet.errors import SourceError, SourceUnavailableError

REMEMBERED_MAX = 40_000
"""More ids than a server holds unwritten: `queue_index_max_journal_entries` is 32,768. Of 10,000
acknowledged messages all came again after an immediate SIGKILL; after 0.3 s none did."""
_SHOWN = 80


@dataclass(frozen=True)
class Reading:
    """Settings of the source."""

    server: RabbitServer
    queue: str
    values: JsonObjects | RawValues
    metadata: bool
    prefetch: int
    needs_ids: bool
    """True for exactly-once, where a redelivered message is recognised by its id."""


class RabbitReader(MessageReader[Message]):
    """Reader of one execution. Only the source's own thread uses `_subscription`."""

    def __init__(self, reading: Reading, job: str, stage: str, bad_rows: BadRowRule | None) -> None:
        # A quorum queue delivers at most `prefetch` messages before it has written acknowledgements
        # to disk. So at most `prefetch` messages may come again after its leader is killed.
        remembered_max = max(REMEMBERED_MAX, reading.prefetch) if reading.needs_ids else 0
        super().__init__(job, stage, bad_rows, reading.values, remembered_max)
        self.reading = reading
        self._subscription: Subscription | None = None

    def poll(self) -> Found[Message]:
        with self._server_errors():
            subscription = self._subscribed()
            if subscription.has_ended:
                self._hang_up()
                raise SourceUnavailableError(
                    f"the server has ended the subscription to {self.reading.queue!r}.",
                    job=self.job,
                    stage=self.stage,
                )
            came, backlog = (
                subscription.receive_backlog()
                if self._reads_backlog
                else (subscription.receive(), None)
            )
            new: list[Message] = []
            again: dict[str, None] = {}
            for delivery in came:
                message_id = self._id_of(delivery)
                subscription.belongs_to(message_id, delivery)
                if self.read.is_acknowledged(message_id):
                    again[message_id] = None
                else:
                    new.append(self._message(message_id, delivery, subscription))
            subscription.acknowledge(again)
            return Found(tuple(new), tuple(again), self._stood(), backlog)

    def acknowledge(self, messages: Mapping[str, Any]) -> bool:
        """Acknowledges by id. A delivery of a broken connection is acknowledged when it recurs."""
        with self._server_errors():
            subscription = self._subscription
            proven = set() if subscription is None else subscription.acknowledge(messages.keys())
        return self._note_acknowledged(messages, proven)

    def close(self) -> None:
        self._hang_up()

    def _subscribed(self) -> Subscription:
        if self._subscription is None:
            reading = self.reading
            self._subscription = Subscription(reading.server, reading.queue, reading.prefetch)
            self._seen_at = None
        return self._subscription

    def _hang_up(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    @contextmanager
    def _server_errors(self) -> Iterator[None]:
        """Translates errors for the job, and closes the connection after any error."""
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
            f"a message of the queue {self.reading.queue!r} has no message_id, so it would count "
            f"twice if it is delivered again: {_beginning(delivery.body)}",
            job=self.job,
            stage=self.stage,
            cure="Let its publisher set a message_id that is unique for each message, or use "
            'guarantee="at-least-once". The message is still in the queue.',
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

    def _table(self, messages: Sequence[Message]) -> pa.Table:
        return table_of(messages, self.reading.queue, with_metadata=self.reading.metadata)


def _beginning(body: bytes) -> str:
    return body[:_SHOWN].decode(errors="replace")
