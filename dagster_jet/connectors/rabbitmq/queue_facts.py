"""Facts about a queue that a user with only the right to read can query."""

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
    """Facts about a queue at the time of the query."""

    type: str | None
    """"classic" or "quorum"; None if the server does not report it."""
    messages: int
    """Messages ready for delivery."""
    consumers: int


def ask_queue(connection: BlockingConnection, queue: str) -> QueueFacts:
    """Queries a queue without taking a message; checks the right to read.

    AMQP has no request for a queue's type. So this subscribes with an argument that only streams
    support. After the permission check the server refuses it with an error that names the queue's
    type. A stream refuses it for another reason: it requires a prefetch, and none is set.

    Raises:
        AMQPError: the queue does not exist, or the user may not read it.
        StreamQueueError: the queue is a stream.
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
    else:  # the server ignored the argument: delivered messages go back
        with suppress(known.AMQPError):
            channel.close()
    return QueueFacts(kind, int(found.message_count), int(found.consumer_count))


def _nothing(*_: Any) -> None:
    """Consumer callback that ignores its message."""
