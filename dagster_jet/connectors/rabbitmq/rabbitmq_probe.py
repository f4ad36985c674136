"""Probes whether RabbitMQ and a queue support exactly-once; tries redelivery with its own queue.

If it crashes, that queue, `jet-probe-...`, remains; the server removes it after ten minutes.
"""

from __future__ import annotations

import re
import secrets
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

from dagster_jet.connectors.rabbitmq.queue_facts import ask_queue
from dagster_jet.connectors.rabbitmq.server import RabbitServer, StreamQueueError, client_library
from dagster_jet.core.answers import Answer, answered, in_words
from dagster_jet.core.secret import Url, shown
from dagster_jet.errors import ConfigurationError, JetError

_NAME = re.compile(r"jet-probe-[0-9a-f]{12}")
_EXPIRES_MS = 600_000
_DELIVERIES_MIN = 10
_NO_LIMIT = 999_999_937
"""An x-delivery-limit that no queue has, so that the server refuses it."""
_LIMIT = re.compile(r"'x-delivery-limit'.*current is (?:the value )?'(\d+)'")
_DEFAULT_TIMEOUT = timedelta(minutes=30)
_COMES_AGAIN = "Does a message that was not acknowledged come again after a disconnect?"
RESTART = "Does it come again after the server was restarted?"


def probe(url: Url, queue: str, interval: timedelta) -> list[Answer]:
    """Returns all answers about the queue.

    Raises:
        JetError: the server cannot be reached, refuses the login, or has no such queue.
    """
    server = RabbitServer(url)
    with (
        server.as_source_errors(queue, "probe", "queue"),
        closing(server.connect()) as connection,
    ):
        try:
            facts = ask_queue(connection, queue)
        except StreamQueueError:
            return [_is_a_queue(False)]
        except client_library().exceptions.ChannelClosedByBroker as error:
            if error.reply_code != 403:
                raise
            facts = None  # reported by `_may_read`
        answers = [_is_a_queue(True)] if facts else []
        answers += [*_may_read(connection, queue), _is_durable(connection, queue)]
        if facts and facts.type == "quorum":
            answers.append(_delivery_limit(connection, queue))
    unknown = "It was not restarted."
    cure = "Run this with --leave, restart the server, then run it with --find."
    return [
        *answers,
        _comes_again(server),
        _time_out(interval),
        answered(RESTART, None, unknown=unknown, cure=cure),
    ]


def leave(url: Url) -> str:
    """Leaves a durable queue with one delivered and unacknowledged message. Returns its name, for
    `find`. Raises `JetError`."""
    server, name = RabbitServer(url), f"jet-probe-{secrets.token_hex(6)}"
    with server.as_source_errors(name, "probe", "queue"):
        _take_and_hang_up(server, name, {})
    return name


def find(url: Url, name: str) -> list[Answer]:
    """Checks whether the message of `leave` is still there, and removes its queue.

    Raises:
        ConfigurationError: the name is not one that `leave` returns.
        JetError: the server cannot be reached.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--find: {name!r} is no name that --leave gives out.", cure="It begins: jet-probe-."
        )
    server = RabbitServer(url)
    with server.as_source_errors(name, "probe", "queue"):
        is_there = _is_redelivered(server, name)
    return [
        answered(
            RESTART,
            is_there,
            yes="It was found, and is removed now.",
            no="It is gone: a durable queue and its messages do not survive.",
            cure="Mend the server's disk; messages of a job would be lost.",
            needed=True,
        )
    ]


def _may_read(connection: Any, queue: str) -> list[Answer]:
    """Gets one message and returns it to the queue, which marks it as redelivered."""
    question = "May the user read the queue?"
    channel = connection.channel()
    try:
        method, properties, _ = channel.basic_get(queue)
    except client_library().exceptions.ChannelClosedByBroker as error:
        return [
            answered(
                question,
                False,
                no=f"{error.reply_text}.",
                cure=f"rabbitmqctl set_permissions USER '' '' '^{queue}$'",
                needed=True,
            )
        ]
    found = answered(question, True, yes="Tried.", needed=True)
    has_ids = "Do its messages have a message_id?"
    if method is None:
        return [found, answered(has_ids, None, unknown="The queue has none now.", needed=True)]
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.close()
    return [
        found,
        answered(
            has_ids,
            bool(properties.message_id),
            yes="The first one has.",
            no="The first one has not: it would end the job.",
            cure='Have publishers set one, or ask for guarantee="at-least-once".',
            needed=True,
        ),
    ]


def _is_a_queue(it_is: bool) -> Answer:
    return answered(
        "Does it forget what is acknowledged?",
        it_is,
        yes="It is a queue.",
        no="It is a stream, which keeps all of it; sources.rabbitmq has no position in one.",
        cure="Bind a quorum queue to the same exchange, and read that.",
        needed=True,
    )


def _delivery_limit(connection: Any, queue: str) -> Answer:
    """Checks a quorum queue's delivery limit: the server refuses a declaration with another limit
    and names the current one. A crash returns unacknowledged messages, which counts."""
    question = "Do messages stay there when the job crashes again and again?"
    cure = f"Declare the queue with an x-delivery-limit of {_DELIVERIES_MIN} or more."
    asked = {"x-queue-type": "quorum", "x-delivery-limit": _NO_LIMIT}
    said = ""
    try:
        connection.channel().queue_declare(queue, durable=True, arguments=asked)
    except client_library().exceptions.ChannelClosedByBroker as error:
        said = str(error.reply_text)
    found = _LIMIT.search(said)
    if found is None:
        has_none = "'x-delivery-limit'" in said and "current is none" in said
        version = str(connection._impl.server_properties.get("version", ""))
        if has_none and version.startswith("3."):
            return answered(
                question, True, yes="It has no x-delivery-limit. (A policy may have set one.)"
            )
        if has_none:
            return answered(
                question,
                True,
                yes="They are moved away after 20 returns, where no policy has set another limit.",
            )
        return answered(
            question, None, unknown=f"It does not tell its x-delivery-limit: {said}.", cure=cure
        )
    most = int(found[1])
    return answered(
        question,
        most >= _DELIVERIES_MIN,
        yes=f"They are moved away after {most} returns.",
        no=f"They are moved away, or dropped, after {most} returns, those by a crash included, and "
        "then not read.",
        cure=cure,
        needed=True,
    )


def _is_durable(connection: Any, queue: str) -> Answer:
    """Checks durability: the server refuses a different declaration and names the argument."""
    holds: bool | None = True
    unknown = ""
    try:
        connection.channel().queue_declare(queue, durable=True)
    except client_library().exceptions.ChannelClosedByBroker as error:
        is_other = error.reply_code == 406
        holds = "'durable'" not in error.reply_text if is_other else None
        unknown = f"{error.reply_text}."
    return answered(
        "Does the queue survive a restart of the server?",
        holds,
        yes="It is durable.",
        no="It is not durable: what is in it is lost with the server.",
        unknown=unknown,
        cure="Declare it anew, durable; publish with delivery_mode 2.",
        needed=True,
    )


def _comes_again(server: RabbitServer) -> Answer:
    name = f"jet-probe-{secrets.token_hex(6)}"
    try:
        _take_and_hang_up(server, name, {"x-expires": _EXPIRES_MS})
        is_there: bool | None = _is_redelivered(server, name)
        unknown = ""
    except client_library().exceptions.AMQPError as error:
        is_there, unknown = None, server.cleansed(" ".join(str(one) for one in error.args))
    return answered(
        _COMES_AGAIN,
        is_there,
        yes="Tried with a queue of its own.",
        no="What a crash leaves unread would be lost.",
        unknown=f"The user may not declare a queue to try it with: {unknown}.",
        needed=True,
    )


def _time_out(interval: timedelta) -> Answer:
    question = "Is its consumer time-out longer than the snapshot interval?"
    cure = "Take snapshots more often, or raise consumer_timeout."
    if interval >= _DEFAULT_TIMEOUT:
        no = f"It is 30 minutes unless it was raised, and the interval is {in_words(interval)}."
        return answered(question, False, no=no, cure=cure, needed=True)
    return answered(
        question,
        None,
        unknown="A server does not tell its consumer_timeout: 30 minutes unless it was changed, "
        f"and the interval is {in_words(interval)}.",
        cure="rabbitmqctl environment | grep consumer_timeout",
    )


def _take_and_hang_up(server: RabbitServer, name: str, arguments: dict[str, Any]) -> None:
    pika = client_library()
    with closing(server.connect()) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.confirm_delivery()
        channel.basic_publish("", name, b"probe", pika.BasicProperties(delivery_mode=2))
        method, _, _ = channel.basic_get(name)
        if method is None:
            raise JetError(f"{shown(server.url)} does not give back what was published.")


def _is_redelivered(server: RabbitServer, name: str) -> bool:
    """Checks whether the message was redelivered, and removes the queue."""
    with closing(server.connect()) as connection:
        channel = connection.channel()
        try:
            method, _, _ = channel.basic_get(name, auto_ack=True)
        except client_library().exceptions.ChannelClosedByBroker as error:
            if error.reply_code == 404:
                return False
            raise
        with suppress(client_library().exceptions.AMQPError):
            channel.queue_delete(name)
        return method is not None and bool(method.redelivered)
