"""What a queue says of itself to somebody who may only read it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.rabbitmq.server import StreamQueueError, client_library

if TYPE_CHECKING:
    from pika import BlockingConnection

_TYPE = re.compile(r"of queue type rabbit_(\w+)_queue")
_OF_STREAMS = {"x-stream-offset": "first"}
_REFUSED, _NOT_IMPLEMENTED = 406, 540


@dataclass(frozen=True)
class QueueFacts:
    """As it is now."""

    type: str | None
    """"classic" or "quorum"; None: it does not say."""
    messages: int
    """Which nobody has been given."""
    consumers: int


def ask_queue(connection: BlockingConnection, queue: str) -> QueueFacts:
    """Takes no message, and asks for the right to read.

    No question of AMQP is for a queue's type. A subscription with an argument that is of streams
    only is refused in its words, after the right was looked at. A stream has another reason: there
    it needs a prefetch, and this one has none.

    Raises:
        AMQPError: there is no such queue, or we may not read it.
        StreamQueueError: it is a stream.
    """
    known = client_library().exceptions
    channel = connection.channel()
    found = channel.queue_declare(queue, passive=True).method
    kind: str | None = None
    try:
        channel.basic_consume(queue, _nothing, arguments=_OF_STREAMS)
    except (known.ChannelClosedByBroker, known.ConnectionClosedByBroker) as error:
        if error.reply_code not in (_REFUSED, _NOT_IMPLEMENTED):
            raise
        named = _TYPE.search(error.reply_text)
        kind = named[1] if named else None
        if kind == "stream" or "prefetch" in error.reply_text or "stream q" in error.reply_text:
            raise StreamQueueError from None
    else:  # a server that does not look at it: what it has handed out goes back
        with suppress(known.AMQPError):
            channel.close()
    return QueueFacts(kind, int(found.message_count), int(found.consumer_count))


def _nothing(*_: Any) -> None:
    """What a message is given to that was not asked for."""
