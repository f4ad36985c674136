"""Reader of a queue: returns the messages of the receivers, and deletes those in a snapshot.

A deletion is proven if SQS performed it while the message was hidden from all other consumers
(`HeldMessages`). After a restart it is not proven, because the handle may be outdated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.message_reader import Found, MessageReader
from dagster_jet.connectors.sqs.message_table import Message, table_of
from dagster_jet.connectors.sqs.queue import QueueClient, SqsQueue
from dagster_jet.connectors.sqs.receivers import Receivers, Receiving
from dagster_jet.connectors.values import JsonObjects, RawValues
from dagster_jet.contract import BadRowRule
from dagster_jet.errors import SourceError

REMEMBERED_MAX = 40_000
"""SQS may redeliver a deleted message if one of its servers was away during the deletion."""
VISIBILITY_MIN_S = 2
"""The time-out is in whole seconds and is renewed at half of it."""
_SHOWN = 80


@dataclass(frozen=True)
class Reading:
    """Settings of the source."""

    queue: SqsQueue
    values: JsonObjects | RawValues
    metadata: bool
    prefetch: int
    threads: int
    visibility_s: int | None
    """None: the queue's own time-out."""
    id_attribute: str | None
    """Publishers' attribute with the id; None: SQS's message id."""
    is_exactly_once: bool


class SqsReader(MessageReader[Message]):
    """Reader of one execution. Only the source's own thread uses `_receivers`."""

    def __init__(self, reading: Reading, job: str, stage: str, bad_rows: BadRowRule | None) -> None:
        remembered_max = REMEMBERED_MAX if reading.is_exactly_once else 0
        super().__init__(job, stage, bad_rows, reading.values, remembered_max)
        self.reading = reading
        self._receivers: Receivers | None = None

    def poll(self) -> Found[Message]:
        with self._unseen_after_errors():
            receivers = self._receiving()
            came, backlog = (
                receivers.poll_backlog() if self._reads_backlog else (receivers.poll(), None)
            )
            is_known = self.read.is_acknowledged
            again = {m.message_id: m.handle for m in came if is_known(m.message_id)}
            try:
                proven = receivers.delete(again)
            except SourceError:
                receivers.put_back(came)
                raise
            new = tuple(message for message in came if message.message_id not in again)
            return Found(new, tuple(proven), self._stood(), backlog)

    def acknowledge(self, messages: Mapping[str, Any]) -> bool:
        with self._unseen_after_errors():
            proven = self._receiving().delete(messages)
        return self._note_acknowledged(messages, proven)

    def close(self) -> None:
        receivers, self._receivers = self._receivers, None
        if receivers is not None:
            receivers.close()

    def _receiving(self) -> Receivers:
        if self._receivers is None:
            reading = self.reading
            client = reading.queue.open(self.job, self.stage)
            seconds = visibility_of(client, reading.visibility_s, self.job, self.stage)
            attributes = ("All",) if reading.metadata else (reading.id_attribute,)
            receiving = Receiving(
                seconds,
                reading.prefetch,
                reading.threads,
                self._id_of,
                tuple(name for name in attributes if name),
                with_system_attributes=reading.metadata,
                in_groups=reading.queue.is_fifo,
            )
            self._receivers = Receivers(client, receiving)
        return self._receivers

    @contextmanager
    def _unseen_after_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._seen_at = None
            raise

    def _id_of(self, received: Mapping[str, Any]) -> str:
        name = self.reading.id_attribute
        if not self.reading.is_exactly_once:
            return str(received["ReceiptHandle"])
        if name is None:
            return str(received["MessageId"])
        value = received.get("MessageAttributes", {}).get(name, {}).get("StringValue")
        if value:
            return str(value)
        raise SourceError(
            f"a message of the queue {self.reading.queue.shown} has no string attribute "
            f"{name!r}, which message_id= names: {received['Body'][:_SHOWN]}",
            job=self.job,
            stage=self.stage,
            cure="Let its publisher set the attribute to a value that is unique for each "
            "message, or leave message_id out: then SQS's own id is used. The message is "
            "still in the queue.",
        )

    def _table(self, messages: Sequence[Message]) -> pa.Table:
        reading = self.reading
        return table_of(messages, reading.queue.name, with_metadata=reading.metadata)


def visibility_of(client: QueueClient, wanted_s: int | None, job: str, stage: str) -> int:
    """Seconds for which messages are hidden.

    Raises:
        SourceError: the time is too short to be renewed.
    """
    seconds = wanted_s or int(client.attributes().get("VisibilityTimeout", 30))
    if seconds < VISIBILITY_MIN_S:
        raise SourceError(
            f"the queue's visibility time-out is {seconds} s: a message would come again before "
            "that could be renewed.",
            job=job,
            stage=stage,
            cure='Set the queue to 30 seconds, or give visibility_timeout="30 seconds".',
        )
    return seconds
