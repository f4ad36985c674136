"""Queries the broker's transaction coordinator, and ends other producers' transactions by producer
id and epoch.

librdkafka can send no request for another producer, so this uses kafka-python, on the driver only.
The request (EndTxn) is a class of its protocol, which has to be routed by hand: `_EndsTransactions`
contains all uses of its private API.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    LastError,
    admin_library,
    client_library,
    is_refusal,
    said,
)
from dagster_jet.core.library import library
from dagster_jet.core.secret import text_of
from dagster_jet.errors import (
    ConfigurationError,
    Reaction,
    SinkError,
    SinkUnavailableError,
)

T = TypeVar("T")
_SILENCE_S, _CONNECTING_S, _ASKING_S, _PAUSE_S = 10.0, 5.0, 2.0, 0.005
_END_TXN_VERSION_MAX = 3
"""From version 5 on, EndTxn changes the producer epoch (KIP-890), unlike librdkafka's other calls;
a retry would need two epochs."""
_OPTIONS = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
"""kafka-python's name by librdkafka's."""


@dataclass(frozen=True)
class Described:
    """State of a transactional id at its coordinator."""

    state: str
    """Kafka's term: Ongoing, PrepareCommit, CompleteCommit, CompleteAbort, Empty, ..."""
    producer_id: int
    producer_epoch: int


@dataclass
class TransactionCoordinator:
    """Connects at the first call, and again after every error."""

    cluster: Cluster
    job: str
    sink: str
    _client: Any = field(default=None, repr=False)

    def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> bool:
        """Commits or aborts this producer's open transaction, and no other. Ending it twice in the
        same way succeeds until the id is used again.

        Returns:
            False: the coordinator refuses. The transaction was ended otherwise, the id was used
                since, or the id is forgotten.

        Raises:
            SinkUnavailableError: temporarily unavailable; the transaction may be ended.
        """
        errors = _errors()
        try:
            self._until_free(
                lambda client: client.end(transactional_id, producer_id, producer_epoch, commit)
            )
        except (
            errors.ProducerFencedError,
            errors.InvalidProducerEpochError,
            errors.InvalidProducerIdMappingError,
            errors.InvalidTxnStateError,
        ):
            return False
        except (errors.KafkaError, OSError) as error:
            raise self._named(error) from None
        return True

    def describe(self, transactional_id: str) -> Described | None:
        """Returns None if the coordinator does not know the id, or not any more.

        Raises:
            SinkUnavailableError: temporarily unavailable.
        """
        errors = _errors()
        try:
            found = self._until_free(lambda client: client.describe(transactional_id))
        except errors.TransactionalIdNotFoundError:
            return None
        except (errors.KafkaError, OSError) as error:
            raise self._named(error) from None
        return Described(str(found.state.value), found.producer_id, found.producer_epoch)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _until_free(self, call: Callable[[_EndsTransactions], T]) -> T:
        """Repeats the call until a coordinator has loaded its log and ended other work. Raises the
        client's errors."""
        errors = _errors()
        moves = errors.NotCoordinatorError, errors.CoordinatorNotAvailableError
        works = errors.ConcurrentTransactionsError, errors.CoordinatorLoadInProgressError
        began = time.monotonic()
        while True:
            try:
                if self._client is None:
                    self._client = _EndsTransactions(self.cluster)
                return call(self._client)
            except (*moves, *works) as error:
                if time.monotonic() - began >= _SILENCE_S:
                    raise
                if isinstance(error, moves):
                    self.close()  # the client keeps the coordinator's address
            time.sleep(_PAUSE_S)

    def _named(self, error: Exception) -> SinkError:
        errors = _errors()
        self.close()
        reason = str(error).rstrip(".: ") or type(error).__name__
        refusal = isinstance(
            error, errors.AuthorizationError | errors.SaslAuthenticationFailedError
        )
        if isinstance(error, errors.KafkaTimeoutError):
            # The client retries even after a refusal, which it does not report.
            refused_by = _refusal(self.cluster)
            if refused_by is not None:
                refusal, reason = True, said(refused_by)
        if refusal:
            refused = SinkError(
                f"the transaction coordinator refuses us: {reason}.",
                job=self.job,
                stage=self.sink,
                cure="Correct the credentials, or the rights (WRITE and DESCRIBE on transactional "
                'ids that begin with "dagster_jet/").',
            )
            refused.reaction = Reaction.FAIL
            return refused
        return SinkUnavailableError(
            f"the transaction coordinator does not answer now: {reason}.",
            job=self.job,
            stage=self.sink,
        )


def _refusal(cluster: Cluster) -> Any:
    """Returns librdkafka's error if the cluster refuses us; else None."""
    last_error = LastError()
    admin = admin_library().AdminClient(cluster.settings(error_cb=last_error))
    with contextlib.suppress(client_library().KafkaException):
        admin.list_topics(timeout=_ASKING_S)
    admin.poll(0)
    last = last_error.last
    return last if last is not None and is_refusal(last) else None


class _EndsTransactions:
    """kafka-python's admin client, extended by the EndTxn request."""

    def __init__(self, cluster: Cluster) -> None:
        kind = coordinator_library().KafkaAdminClient
        self._admin = kind.__new__(kind)
        try:
            self._admin.__init__(
                **client_settings(cluster),
                bootstrap_timeout_ms=round(_CONNECTING_S * 1000),
                request_timeout_ms=round(_SILENCE_S * 1000),
                reconnect_backoff_max_ms=1000,
            )
        except BaseException:
            # Its thread is running and would connect to the cluster forever.
            self._admin._closed = False
            self._admin.close()
            raise

    def describe(self, transactional_id: str) -> Any:
        return self._admin.describe_transactions([transactional_id])[transactional_id]

    def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool
    ) -> None:
        """Raises the error of the coordinator's answer."""
        from kafka.protocol.metadata import CoordinatorType
        from kafka.protocol.producer import EndTxnRequest

        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=commit,
            max_version=_END_TXN_VERSION_MAX,
        )
        admin = self._admin

        async def send() -> Any:
            kind = CoordinatorType.TRANSACTION
            places = await admin._find_coordinator_ids([transactional_id], key_type=kind)
            return await admin._manager.send(request, node_id=places[transactional_id])

        found = _errors().for_code(admin._manager.run(send).error_code)
        if found is not _errors().NoError:
            raise found()

    def close(self) -> None:
        self._admin.close()


def client_settings(cluster: Cluster) -> dict[str, Any]:
    """Converts the cluster's options for kafka-python; drops those that only tune librdkafka.

    Raises:
        ConfigurationError: a security option has no counterpart.
    """
    servers = text_of(cluster.servers).split(",")
    settings: dict[str, Any] = {"bootstrap_servers": [server.strip() for server in servers]}
    for name, value in cluster.options:
        text = text_of(value)
        if name in _OPTIONS:
            # kafka-python logs its settings at debug level.
            settings[_OPTIONS[name]] = _Hidden(text) if "password" in name else text
        elif name == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = text != "none"
        elif name.startswith(("sasl.", "ssl.", "enable.ssl.", "oauthbearer.")):
            raise ConfigurationError(
                f'options: {name} cannot be used with transactions="held": kafka-python, the '
                "client that ends transactions, does not support it.",
                cure='Use transactions="roll-forward".',
            )
    protocol = settings.get("security_protocol", "plaintext")
    return {**settings, "security_protocol": protocol.upper()}


class _Hidden(str):
    """Password whose repr is hidden."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


def coordinator_library() -> Any:
    """Returns kafka-python. Raises `MissingEnvironmentError` if it is not installed."""
    needs = 'Kafka\'s transactions="held" needs the package kafka-python, version 3 or newer'
    library("kafka.protocol.producer", "dagster-jet[kafka-held]", needs)
    _quieten()
    return library("kafka", "dagster-jet[kafka-held]", needs)


def _quieten() -> None:
    """Silences its logs: errors that it also raises, and requests at debug level."""
    for name in ("kafka", "kafka.net", "kafka.protocol"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)
        elif name != "kafka" and logger.level < logging.INFO:
            logger.setLevel(logging.INFO)  # requests contain passwords


def _errors() -> Any:
    coordinator_library()
    import kafka.errors

    return kafka.errors
