"""Kafka cluster as seen by a client: addresses, settings, and the meaning of errors."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.core.library import library
from dagster_jet.core.secret import Url, as_json, from_json, named, text_of
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

Options = tuple[tuple[str, Url], ...]
"""(librdkafka's name, value) pairs; values may be secrets."""
_OURS = frozenset(
    {
        "bootstrap.servers", "transactional.id", "group.id", "isolation.level",
        "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset",
        "enable.partition.eof", "enable.idempotence", "error_cb", "logger", "stats_cb",
    }
)  # fmt: skip
"""Settings that the guarantee depends on."""
_HIDDEN = ("password", "secret", "sasl.jaas", "key.pem", "oauthbearer.config", "token")
_WAIT_S = 10.0


@dataclass(frozen=True)
class Cluster:
    """Address and options of a cluster; picklable, without the values of secrets."""

    servers: Url
    options: Options = ()

    @classmethod
    def of(cls, servers: Url, options: Mapping[str, Url] | None) -> Cluster:
        """Raises `ConfigurationError`: an option is ours, or a password is written out."""
        given = {name: named(value) for name, value in (options or {}).items()}
        if ours := sorted(_OURS & set(given)):
            raise ConfigurationError(
                f"options: {', '.join(ours)} is set by dagster_jet.", cure="Leave it out."
            )
        for name, value in given.items():
            if isinstance(value, str) and any(mark in name for mark in _HIDDEN):
                raise ConfigurationError(
                    f"options: {name} is given in plain text, and everybody who sees the code "
                    "can read it.",
                    cure=f'Name a variable that holds it: {{"{name}": Secret(env="...")}}.',
                )
        return cls(named(servers), tuple(sorted(given.items())))

    def settings(self, **more: Any) -> dict[str, Any]:
        """Settings of a librdkafka client, in the process that connects. Nothing is logged to
        stderr: errors are raised, or kept by `LastError`."""
        given = {name: text_of(value) for name, value in self.options}
        # librdkafka prints a producer's fencing or refusal at any log level, unless its log goes to
        # a queue, which nobody reads.
        quiet = {"log_level": 0, "log.queue": not given.keys() & {"debug", "log_level"}}
        return {"bootstrap.servers": text_of(self.servers), **quiet, **given, **more}

    def as_json(self) -> dict[str, Any]:
        """JSON for a manifest, with the names of secrets, not their values."""
        return {
            "servers": as_json(self.servers),
            "options": {name: as_json(value) for name, value in self.options},
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Cluster:
        options = {name: from_json(value) for name, value in saved["options"].items()}
        return cls(from_json(saved["servers"]), tuple(sorted(options.items())))


class LastError:
    """Last background error of a client, which explains why a call was not answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: KafkaError | None = None
        self._refusal: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        with self._lock:
            # "All brokers down" names no reason; an earlier error does.
            if self._last is None or error.code() != client_library().KafkaError._ALL_BROKERS_DOWN:
                self._last = error
            if is_refusal(error):
                self._refusal = error

    @property
    def last(self) -> KafkaError | None:
        with self._lock:
            return self._refusal or self._last

    def explain(self, error: KafkaError) -> KafkaError:
        """Replaces a mere time-out by its reason. A refusal takes precedence over a lost
        connection."""
        with self._lock:
            if is_refusal(error):
                return error
            return self._refusal or (error if is_lasting(error) else self._last or error)


def client_library() -> Any:
    """Returns confluent_kafka. Raises `MissingEnvironmentError` if it is not installed."""
    return library(
        "confluent_kafka", "dagster-jet[kafka]", "Kafka needs the package confluent-kafka"
    )


def admin_library() -> Any:
    """Returns confluent_kafka.admin."""
    client_library()
    import confluent_kafka.admin

    return confluent_kafka.admin


def is_lasting(error: KafkaError) -> bool:
    """True for errors that need a person. All others are temporary: brokers that start, stop or
    move report many different codes."""
    code = client_library().KafkaError
    return (
        is_refusal(error)
        or is_unsupported(error)
        or error.code()
        in {
            code.UNKNOWN_TOPIC_OR_PART,
            code._UNKNOWN_TOPIC,
            code._UNKNOWN_PARTITION,
            code.TOPIC_EXCEPTION,
            code.MSG_SIZE_TOO_LARGE,
            code.INVALID_RECORD,
            code.INVALID_CONFIG,
            code.INVALID_TIMESTAMP,
            code.INVALID_TRANSACTION_TIMEOUT,
            code.POLICY_VIOLATION,
            code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            code._INVALID_ARG,
        }
    )


def is_moving(error: KafkaError) -> bool:
    """True while a partition or a group has no leader that all brokers agree on: it was just
    created, its leader moves, or a broker has restarted."""
    code = client_library().KafkaError
    return error.code() in {
        code.NOT_LEADER_FOR_PARTITION,
        code.LEADER_NOT_AVAILABLE,
        code.FENCED_LEADER_EPOCH,
        code.UNKNOWN_LEADER_EPOCH,
        code.OFFSET_NOT_AVAILABLE,
        code.REPLICA_NOT_AVAILABLE,
        code.KAFKA_STORAGE_ERROR,
        code.NOT_CONTROLLER,
        code.COORDINATOR_LOAD_IN_PROGRESS,
        code.COORDINATOR_NOT_AVAILABLE,
        code.NOT_COORDINATOR,
    }


def is_unknown_topic(error: KafkaError) -> bool:
    """True if a broker does not know a topic: it does not exist, or this broker has not heard of
    it yet."""
    code = client_library().KafkaError
    return error.code() in {code.UNKNOWN_TOPIC_OR_PART, code._UNKNOWN_TOPIC}


def is_unsupported(error: KafkaError) -> bool:
    """True if the cluster lacks the call: an older Kafka, or another server with its protocol."""
    code = client_library().KafkaError
    return error.code() in {code.UNSUPPORTED_VERSION, code._UNSUPPORTED_FEATURE}


def is_refusal(error: KafkaError) -> bool:
    """Authentication or authorization error; not retryable."""
    code = client_library().KafkaError
    return error.code() in {
        code._AUTHENTICATION,
        code.SASL_AUTHENTICATION_FAILED,
        code.TOPIC_AUTHORIZATION_FAILED,
        code.GROUP_AUTHORIZATION_FAILED,
        code.CLUSTER_AUTHORIZATION_FAILED,
        code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        code._SSL,
        code.UNSUPPORTED_SASL_MECHANISM,
        code.ILLEGAL_SASL_STATE,
    }


def answered(offset: int) -> int:
    """Checks an offset returned by the cluster.

    Raises:
        TimeoutError: the connection was cut. The library then returns an invalid offset instead of
            an error, which would look like an empty partition.
    """
    if offset == client_library().OFFSET_INVALID:
        raise TimeoutError("the cluster has not returned its offsets")
    return offset


def said(error: KafkaError) -> str:
    """Text of an error without its full stop."""
    text = str(error.str())
    if error.code() == client_library().KafkaError._SSL and "certificate verify failed" in text:
        # OpenSSL's own text contains a line of its source and names no cure.
        return (
            "the broker's certificate cannot be verified: ssl.ca.location must be the file of "
            "the authority that signed it, and the certificate must be valid for the broker's "
            "host name"
        )
    return text.rstrip(". ")


def error_of(raised: BaseException) -> KafkaError | None:
    """Returns the `KafkaError` in an exception of the client library, if any."""
    first = raised.args[0] if raised.args else None
    return first if isinstance(first, client_library().KafkaError) else None
