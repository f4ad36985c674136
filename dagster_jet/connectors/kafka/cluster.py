"""A Kafka cluster as a client finds it: addresses, settings, and what its errors mean."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.core.secret import Url, named, text_of
from dagster_jet.errors import ConfigurationError, MissingEnvironmentError

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
"""Settings on which the guarantee stands."""
_HIDDEN = ("password", "secret", "sasl.jaas", "key.pem", "oauthbearer.config", "token")
_WAIT_S = 10.0


@dataclass(frozen=True)
class Cluster:
    """Where it is, and how to reach it; picklable, without the values of secrets."""

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
                    f"options: {name} is written out, for everybody to read who sees the code.",
                    cure=f'Name a variable that holds it: {{"{name}": Secret(env="...")}}.',
                )
        return cls(named(servers), tuple(sorted(given.items())))

    def settings(self, **more: Any) -> dict[str, Any]:
        """For a client of librdkafka, in the process that connects. Nothing is logged to stderr:
        errors are raised, or remembered by `Troubles`."""
        given = {name: text_of(value) for name, value in self.options}
        # That a producer is fenced, or refused, is printed on any level, unless it waits in a queue
        # that nobody reads.
        quiet = {"log_level": 0, "log.queue": not given.keys() & {"debug", "log_level"}}
        return {"bootstrap.servers": text_of(self.servers), **quiet, **given, **more}

    def as_json(self) -> dict[str, Any]:
        """For a manifest: names of secrets, not their values."""

        def plain(value: Url) -> Any:
            return value if isinstance(value, str) else {"env": value.env}

        return {
            "servers": plain(self.servers),
            "options": {name: plain(value) for name, value in self.options},
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Cluster:
        def back(value: Any) -> Url:
            return named(f"env:{value['env']}") if isinstance(value, Mapping) else str(value)

        options = {name: back(value) for name, value in saved["options"].items()}
        return cls(back(saved["servers"]), tuple(sorted(options.items())))


class Troubles:
    """The last error that a client had in the background: why a call was not answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: KafkaError | None = None
        self._refusal: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        with self._lock:
            # That all are away says nothing of why; what came before it does.
            if self._last is None or error.code() != client_library().KafkaError._ALL_BROKERS_DOWN:
                self._last = error
            if is_refusal(error):
                self._refusal = error

    @property
    def last(self) -> KafkaError | None:
        with self._lock:
            return self._refusal or self._last

    def explain(self, error: KafkaError) -> KafkaError:
        """A call that only says that nobody has answered: why. A refusal says more than that the
        connection is gone."""
        with self._lock:
            if is_refusal(error):
                return error
            return self._refusal or (error if is_lasting(error) else self._last or error)


def client_library() -> Any:
    """confluent_kafka. Raises `MissingEnvironmentError`: it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise MissingEnvironmentError(
            "Kafka needs the package confluent-kafka.",
            cure="Install it with: pip install 'dagster-jet[kafka]', on every executor too.",
        ) from None
    return confluent_kafka


def admin_library() -> Any:
    """confluent_kafka.admin."""
    client_library()
    import confluent_kafka.admin

    return confluent_kafka.admin


def is_lasting(error: KafkaError) -> bool:
    """A person has to change something. Whatever else a cluster says passes: brokers that start,
    stop or change places have many words for it."""
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


def is_unsupported(error: KafkaError) -> bool:
    """The cluster has no such call: an older one, or another server that speaks as Kafka does."""
    code = client_library().KafkaError
    return error.code() in {code.UNSUPPORTED_VERSION, code._UNSUPPORTED_FEATURE}


def is_refusal(error: KafkaError) -> bool:
    """Who we are, or what we may do, is not good enough: a person has to change something."""
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
    """An offset that a cluster was asked for.

    Raises:
        TimeoutError: the connection was cut: the library then gives out a number that is none, and
            no error. Taken for an end it would mean that nothing is there.
    """
    if offset == client_library().OFFSET_INVALID:
        raise TimeoutError("the cluster has not said which offsets there are")
    return offset


def said(error: KafkaError) -> str:
    """Its text, to be followed by a full stop."""
    text = str(error.str())
    if error.code() == client_library().KafkaError._SSL and "certificate verify failed" in text:
        # OpenSSL's words, with the line of its source, say this to those who know it.
        return (
            "the broker's certificate cannot be verified: ssl.ca.location has to be the file of "
            "the authority that has signed it, and it has to be for the host that we ask for"
        )
    return text.rstrip(". ")


def error_of(raised: BaseException) -> KafkaError | None:
    """The `KafkaError` in an exception of the client library."""
    first = raised.args[0] if raised.args else None
    return first if isinstance(first, client_library().KafkaError) else None
