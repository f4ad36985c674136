"""RabbitMQ server as seen by a client: URL, connections and the meaning of errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dagster_jet.core.library import library
from dagster_jet.core.secret import Secret, Url, named, shown, text_of
from dagster_jet.errors import (
    ConfigurationError,
    JetError,
    SourceError,
    SourceUnavailableError,
)

if TYPE_CHECKING:
    from pika import BlockingConnection

CONNECT_S = 10
_HANG_UP_S = 1.0
HEARTBEAT_S = 60
"""The server redelivers the messages of a frozen process after twice this time. Heartbeats are
served between epochs only. A longer epoch causes a redelivery and nothing else."""


class StreamQueueError(Exception):
    """The queue is a stream."""


@dataclass(frozen=True)
class RabbitServer:
    """Address of a server; its repr shows no password."""

    url: Url

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", named(self.url))
        client_library()
        if not isinstance(self.url, Secret):
            self.parameters()

    def __repr__(self) -> str:
        return f"RabbitServer({shown(self.url)!r})"

    def parameters(self) -> Any:
        """Parameters for pika. Raises `ConfigurationError`, without the URL, if it is not valid."""
        text = text_of(self.url)
        try:
            parts = urlsplit(text)
            if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
                raise ValueError
            if parts.username and parts.password is None:
                text = text.replace("@", ":@", 1)
            found = client_library().URLParameters(text)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            raise ConfigurationError(
                "url: this is not a valid URL of a RabbitMQ server.",
                cure="Use amqp://user@host:5672/vhost, or amqps:// for TLS.",
            ) from None
        found.socket_timeout = found.socket_timeout and CONNECT_S
        found.blocked_connection_timeout = found.blocked_connection_timeout or 60
        if found.heartbeat is None:
            found.heartbeat = HEARTBEAT_S
        return found

    def connect(self) -> BlockingConnection:
        """Opens a connection for one thread. Raises pika's errors; see `as_source_errors`."""
        # Errors are raised and reported once; pika would also log each attempt as an error.
        log = logging.getLogger("pika")
        if log.level == logging.NOTSET:
            log.setLevel(logging.CRITICAL)
        return client_library().BlockingConnection(self.parameters())

    def cleansed(self, text: str) -> str:
        """Removes the URL's secrets from a message of the client library."""
        try:
            url = text_of(self.url)
            password = urlsplit(url).password
        except (ConfigurationError, ValueError):
            return text
        text = text.replace(url, shown(self.url) if isinstance(self.url, Secret) else shown(url))
        for secret in {password, unquote(password)} if password else ():
            text = text.replace(secret, "***")
        return text

    @contextmanager
    def as_source_errors(self, queue: str, job: str, stage: str) -> Iterator[None]:
        """Translates pika's errors into errors with a reaction of the job."""
        try:
            yield
        except JetError:
            raise
        except _errors() as error:
            raise self._meaning(error, queue, job, stage) from None

    def _meaning(self, error: Exception, queue: str, job: str, stage: str) -> SourceError:
        place, known = shown(self.url), client_library().exceptions
        code, text = _reply(error)
        said = self.cleansed(text)
        if isinstance(error, known.ProbableAuthenticationError | known.AuthenticationError) or (
            code == 403 and "login" in text.lower()
        ):
            message, cure = (
                f"{place} refuses user name and password.",
                "Correct them in the URL; `guest` may connect from the server's own host only.",
            )
        elif isinstance(error, known.ProbableAccessDeniedError) or code == 530:
            message, cure = (
                f"{place} has no such virtual host, or the user may not use it: {said}.",
                "Correct the path of the URL (`/` is written %2F), or give the user the right.",
            )
        elif isinstance(error, StreamQueueError):
            message, cure = (
                f"the queue {queue!r} of {place} is a stream: it keeps acknowledged messages, "
                "and this source does not save a position in a stream.",
                "Bind a quorum queue to the same exchange, and read that.",
            )
        elif code == 403 and "exclusive use" in text:
            message, cure = (
                f"another consumer reads the queue {queue!r} of {place} alone: {said}.",
                "Stop that consumer: a queue may be read by one job only.",
            )
        elif code == 403:
            message, cure = (
                f"the user may not read the queue {queue!r} of {place}: {said}.",
                f"rabbitmqctl set_permissions USER '' '' '^{queue}$'",
            )
        elif code == 404 and "no queue" in text:
            message, cure = (
                f"the queue {queue!r} of {place} does not exist.",
                "Declare the queue as durable, or correct its name. This source does not declare "
                "queues.",
            )
        elif code == 405:
            message, cure = (
                f"the queue {queue!r} of {place} belongs to another connection: {said}.",
                "Declare it without `exclusive`.",
            )
        else:
            reason = f"{type(error).__name__}{f': {said}' if said else ''}"
            return SourceUnavailableError(
                f"{place} cannot be read now: {reason}", job=job, stage=stage
            )
        return SourceError(message, job=job, stage=stage, cure=cure)


def hang_up(connection: BlockingConnection) -> None:
    """Closes a connection that is not used any more. Waits briefly: a network that is frozen gives
    no answer until heartbeats are missed."""

    def close() -> None:
        with suppress(Exception):  # it may be the one that has failed
            connection.close()

    thread = threading.Thread(target=close, name="jet-rabbitmq-close", daemon=True)
    thread.start()
    thread.join(_HANG_UP_S)


def client_library() -> Any:
    """Returns pika. Raises `MissingEnvironmentError`."""
    return library("pika", "dagster-jet[rabbitmq]", "RabbitMQ needs the package 'pika'")


def _errors() -> tuple[type[Exception], ...]:
    """Returns the errors of pika and of sockets. Handshakes without an answer have one of their
    own."""
    from pika.adapters.utils.connection_workflow import AMQPConnectorException

    amqp: type[Exception] = client_library().exceptions.AMQPError
    return amqp, AMQPConnectorException, StreamQueueError, OSError


def _reply(error: Exception) -> tuple[int, str]:
    """Reply code of the server (0 if there is none) and its text."""
    for one in (error, *error.args):
        code = getattr(one, "reply_code", None)
        if isinstance(code, int):
            return code, str(getattr(one, "reply_text", ""))
    if len(error.args) == 2 and isinstance(error.args[0], int):
        return error.args[0], str(error.args[1])
    return 0, " ".join(str(one) for one in error.args)
