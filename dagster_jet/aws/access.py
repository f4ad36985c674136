"""Clients of AWS services that survive a fork, with bounded calls and classified failures."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import Loader

from dagster_jet.core.secret import Secret, Url, text_of
from dagster_jet.system.backoff import attempts

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8
_ATTEMPTS_MAX = 3


class Cause(Enum):
    """Cause of a failed request."""

    CREDENTIALS = "credentials"
    """Credentials are missing, wrong, or lack a permission."""
    PLACE = "place"
    """The bucket or table does not exist, or not in this region."""
    REQUEST = "request"
    """The service does not support the request."""
    FULL = "full"
    """A non-AWS server has no space, or a quota is used up."""
    OUTAGE = "outage"
    """The service does not answer correctly: the same call may succeed later."""


@dataclass(frozen=True, slots=True)
class AwsFailure:
    """A failed call.

    Attributes:
        cause: an outage passes by itself, all others need an operator.
        text: the message of the service or boto3, without a full stop.
        is_doubtful: the request may have been carried out anyway; None: it may be repeated.
    """

    cause: Cause
    text: str
    is_doubtful: bool | None = None


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """Connection settings of a service; hashable and safe to pickle.

    Attributes:
        region: None: boto3's default.
        endpoint_url: URL of a server other than AWS; None: boto3's default.
        connect_timeout_s: per attempt, in seconds.
        timeout_s: time limit of one response, in seconds.
        credentials: key id, key and perhaps a session token; empty: boto3's default
            (environment, profile, role).
    """

    region: str | None = None
    endpoint_url: Url | None = None
    connect_timeout_s: float = 2
    timeout_s: float = 20
    credentials: tuple[Secret, ...] = ()


_NEEDS_A_PERSON = {
    **dict.fromkeys(
        (
            *("AccessDenied", "AccessDeniedException", "AllAccessDisabled", "403", "Forbidden"),
            *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSignatureException"),
            *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidToken"),
            *("MissingAuthenticationToken", "MissingAuthenticationTokenException"),
            *("ExpiredToken", "ExpiredTokenException", "AccountProblem"),
            *("KMS.AccessDeniedException", "KmsAccessDenied", "InvalidSecurity"),
        ),
        Cause.CREDENTIALS,
    ),
    **dict.fromkeys(
        (
            *("NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "301"),
            *("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
            *("ResourceNotFoundException", "AWS.SimpleQueueService.NonExistentQueue"),
            *("QueueDoesNotExist", "InvalidAddress"),
        ),
        Cause.PLACE,
    ),
    **dict.fromkeys(
        (
            *("NotImplemented", "ValidationException", "InvalidRequest"),
            *("UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation"),
        ),
        Cause.REQUEST,
    ),
    **dict.fromkeys(
        (
            *("XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded"),
            *("InsufficientStorage", "ItemCollectionSizeLimitExceededException"),
        ),
        Cause.FULL,
    ),
}
_NOT_DONE = frozenset(
    (
        *("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"),
        *("ProvisionedThroughputExceededException", "ConditionalRequestConflict"),
    )
)
"""Error codes that mean that nothing was done."""
_NOT_SENT = (EndpointConnectionError, ConnectTimeoutError)
"""No connection was made."""


_own = threading.local()


def _become_worker() -> None:
    _own.is_worker = True  # must not wait for threads of its own pool


_loader = Loader()
_client_lock = threading.Lock()  # creating clients is not thread-safe, using them is


def _new_client(service: str, **settings: Any) -> Any:
    """Create a client with its own session; the loaded service models are shared."""
    with _client_lock:
        session = botocore.session.Session()
        session.register_component("data_loader", _loader)
        return session.create_client(service, **settings)


def _new_lock() -> None:
    global _client_lock
    _client_lock = threading.Lock()  # another thread may have held it during the fork


os.register_at_fork(after_in_child=_new_lock)


class _Clients:
    """The clients and threads of one process."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.pid = os.getpid()
        self.repeating = make(_ATTEMPTS_MAX)
        self.once = make(1)
        self.threads = ThreadPoolExecutor(
            _THREADS, thread_name_prefix="jet-aws", initializer=_become_worker
        )


class AwsAccess:
    """One user's access to an AWS service. Usable from threads and after a fork.

    Args:
        service: the service's name in boto3.
        settings: the connection settings.
        as_error: returns the exception for a failure.
    """

    def __init__(
        self,
        service: str,
        settings: AwsSettings,
        as_error: Callable[[AwsFailure], Exception],
    ) -> None:
        self._service = service
        self._settings = settings
        self._as_error = as_error
        self._made: _Clients | None = None

    @property
    def repeating(self) -> Any:
        """A client that retries failed requests, with back-off and jitter."""
        return self._clients().repeating

    @property
    def once(self) -> Any:
        """A client without retries, for requests that must not be repeated."""
        return self._clients().once

    def in_parallel(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Do the work for each item, several at once; nested calls run one by one."""
        waiting = list(items)
        if len(waiting) < 2 or getattr(_own, "is_worker", False):
            return [work(item) for item in waiting]
        return list(self._clients().threads.map(work, waiting))

    def set_once(self, call: Callable[[], T], refused: Iterable[str]) -> T | None:
        """Make a conditional write that must not be repeated after a lost answer.

        Returns:
            The call's result; None if the condition did not hold (a code in ``refused``).

        Raises:
            Exception: the exception of `as_error`; after an outage the outcome is unknown.
        """
        codes = frozenset(refused)
        failure: Exception | None = None
        for _ in attempts(_ATTEMPTS_MAX, base_s=0.1):
            try:
                return call()
            except ClientError as error:
                if code_of(error) in codes:
                    return None
                if code_of(error) not in _NOT_DONE:
                    raise self._named(error, is_doubtful=_is_servers_fault(error)) from error
                failure = error
            except BotoCoreError as error:
                raise self._named(error, is_doubtful=not isinstance(error, _NOT_SENT)) from error
        assert failure is not None
        raise self._named(failure, is_doubtful=False) from failure

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Convert exceptions of boto3 into those of `as_error`."""
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise self._named(error) from error

    def close(self) -> None:
        """Close connections and threads; the next call creates new ones."""
        made, self._made = self._made, None
        if made is not None and made.pid == os.getpid():
            made.threads.shutdown(wait=False)
            made.repeating.close()
            made.once.close()

    def _clients(self) -> _Clients:
        made = self._made
        if made is None or made.pid != os.getpid():
            # Two threads may both get here: the later one wins, the other one uses its own clients.
            made = self._made = _Clients(self._make)
        return made

    def _make(self, attempts_max: int) -> Any:
        wanted = self._settings
        key_id, key, token = (*(secret.value() for secret in wanted.credentials), None, None, None)[
            :3
        ]
        endpoint_url = None if wanted.endpoint_url is None else text_of(wanted.endpoint_url)
        try:
            return _new_client(
                self._service,
                region_name=wanted.region,
                endpoint_url=endpoint_url,
                aws_access_key_id=key_id,
                aws_secret_access_key=key,
                aws_session_token=token,
                config=Config(
                    connect_timeout=wanted.connect_timeout_s,
                    read_timeout=wanted.timeout_s,
                    retries={"mode": "standard", "total_max_attempts": attempts_max},
                    max_pool_connections=2 * _THREADS,
                    s3={"addressing_style": "path"} if endpoint_url else {},
                ),
            )
        except BotoCoreError as error:
            raise self._named(error) from error

    def _named(self, error: Exception, *, is_doubtful: bool | None = None) -> Exception:
        text = str(error).strip().rstrip(".")
        cause = Cause.OUTAGE
        if isinstance(error, ClientError):
            text = f"{code_of(error)}: {error.response.get('Error', {}).get('Message', '')}"
            text = text.strip().rstrip(".:")
            cause = _NEEDS_A_PERSON.get(code_of(error), Cause.OUTAGE)
        elif isinstance(
            error,
            NoCredentialsError
            | PartialCredentialsError
            | CredentialRetrievalError
            | ProfileNotFound,
        ):
            cause = Cause.CREDENTIALS
        elif isinstance(error, NoRegionError | InvalidRegionError):
            cause = Cause.PLACE
        elif isinstance(error, ParamValidationError):
            cause = Cause.REQUEST
        return self._as_error(AwsFailure(cause, text, is_doubtful))


def code_of(error: ClientError) -> str:
    """Return the code of an error response."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _is_servers_fault(error: ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return bool(status >= 500)
