"""What the AWS members share: clients that survive a fork, bounded calls, errors with a cure.

Credentials come from where boto3 finds them (environment, profile, role); a URL has no place for
them, so they cannot leak from one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import Loader

from dagster_jet.errors import ConfigurationError, StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.members.backoff import attempts
from dagster_jet.store.members.member import Versioned
from dagster_jet.store.members.network_url import NetworkUrl

T = TypeVar("T")
R = TypeVar("R")

OPTIONS = ("region", "endpoint_url", "connect_timeout", "timeout")
_THREADS = 8
_ATTEMPTS_MAX = 3

_CURES = {
    "credentials": "Check the credentials boto3 finds here, and what they are allowed.",
    "place": "Check the name and the region, or create it.",
    "request": "Check the URL, and that the endpoint supports conditional writes.",
}
_NEEDS_A_PERSON = {
    **dict.fromkeys(
        (
            *("AccessDenied", "AccessDeniedException", "AllAccessDisabled", "403", "Forbidden"),
            *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSignatureException"),
            *("UnrecognizedClientException", "InvalidClientTokenId", "InvalidToken"),
            *("MissingAuthenticationToken", "MissingAuthenticationTokenException"),
            *("ExpiredToken", "ExpiredTokenException", "AccountProblem"),
        ),
        "credentials",
    ),
    **dict.fromkeys(
        (
            *("NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "301"),
            *("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
            "ResourceNotFoundException",
        ),
        "place",
    ),
    **dict.fromkeys(("NotImplemented", "ValidationException", "InvalidRequest"), "request"),
}
_NOT_DONE = frozenset(
    (
        *("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"),
        *("ProvisionedThroughputExceededException", "ConditionalRequestConflict"),
    )
)
"""Answers that say that nothing was done."""


_own = threading.local()


def _become_worker() -> None:
    _own.is_worker = True  # it must not wait for threads of its own pool


_loader = Loader()
_client_lock = threading.Lock()  # making clients is not for several threads, using them is


def _new_client(service: str, **settings: Any) -> Any:
    """Make a client from a session of its own, with what is known of the service shared."""
    with _client_lock:
        session = botocore.session.Session()
        session.register_component("data_loader", _loader)
        return session.create_client(service, **settings)


def _new_lock() -> None:
    global _client_lock
    _client_lock = threading.Lock()  # another thread may have held it at the moment of the fork


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
    """One AWS service as one member uses it. Usable from threads and after a fork.

    Args:
        service: as boto3 names it.
        url: the member's URL.
        member_id: for the messages.
        timeout_s: how long one answer may take unless the URL says it.

    Raises:
        ConfigurationError: an option is not right.
    """

    def __init__(self, service: str, url: NetworkUrl, member_id: str, timeout_s: float) -> None:
        self.member_id = member_id
        self._service = service
        self._region = url.options.get("region")
        self._endpoint_url = url.options.get("endpoint_url")
        self._connect_timeout_s = url.seconds("connect_timeout", 2)
        self._timeout_s = url.seconds("timeout", timeout_s)
        self._made: _Clients | None = None

    @property
    def repeating(self) -> Any:
        """A client that repeats what failed on the way, with back-off and jitter."""
        return self._clients().repeating

    @property
    def once(self) -> Any:
        """A client that asks once: for what must not be done twice."""
        return self._clients().once

    def in_parallel(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Do the work for each item, several at once; from inside such work, one by one."""
        waiting = list(items)
        if len(waiting) < 2 or getattr(_own, "is_worker", False):
            return [work(item) for item in waiting]
        return list(self._clients().threads.map(work, waiting))

    def set_once(self, call: Callable[[], T], refused: Iterable[str]) -> T | None:
        """Make a conditional write that must not be repeated when its answer is lost.

        Returns:
            What the call returns; None where the condition did not hold (a code in ``refused``).

        Raises:
            StoreUnavailableError: the outcome may be either; says so.
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
                raise self._named(error, is_doubtful=True) from error
        assert failure is not None
        raise self._named(failure) from failure

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn what boto3 raises into the errors of the ``Member`` contract."""
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise self._named(error) from error

    def close(self) -> None:
        """Close connections and threads; the next call makes new ones."""
        made, self._made = self._made, None
        if made is not None and made.pid == os.getpid():
            made.threads.shutdown(wait=False)
            made.repeating.close()
            made.once.close()

    def _clients(self) -> _Clients:
        made = self._made
        if made is None or made.pid != os.getpid():
            # Two threads may both come here: the one that is later wins, the other's work is done
            # with its own clients.
            made = self._made = _Clients(self._make)
        return made

    def _make(self, attempts_max: int) -> Any:
        try:
            return _new_client(
                self._service,
                region_name=self._region,
                endpoint_url=self._endpoint_url,
                config=Config(
                    connect_timeout=self._connect_timeout_s,
                    read_timeout=self._timeout_s,
                    retries={"mode": "standard", "total_max_attempts": attempts_max},
                    max_pool_connections=2 * _THREADS,
                    s3={"addressing_style": "path"} if self._endpoint_url else {},
                ),
            )
        except BotoCoreError as error:
            raise self._named(error) from error

    def _named(
        self, error: Exception, *, is_doubtful: bool = False
    ) -> StoreUnavailableError | StoreUnwritableError:
        text = str(error).strip().rstrip(".")
        kind = None
        if isinstance(error, ClientError):
            text = f"{code_of(error)}: {error.response.get('Error', {}).get('Message', '')}"
            text = text.strip().rstrip(".:")
            kind = _NEEDS_A_PERSON.get(code_of(error))
        elif isinstance(
            error,
            NoCredentialsError
            | PartialCredentialsError
            | CredentialRetrievalError
            | ProfileNotFound,
        ):
            kind = "credentials"
        elif isinstance(error, NoRegionError):
            kind = "place"
        elif isinstance(error, ParamValidationError):
            kind = "request"
        if kind is not None:
            return StoreUnwritableError(
                f"the store member {self.member_id} cannot be used: {text}.", cure=_CURES[kind]
            )
        doubt = " Whether the value was set is unknown." if is_doubtful else ""
        return StoreUnavailableError(
            f"the store member {self.member_id} does not answer as it should: {text}.{doubt}",
            cure="Other replicas serve meanwhile; check the way to it.",
        )


class SeenVersions:
    """Notices a place that was emptied, or put back to an older state, while it is in use.

    Versioned values are never removed and their versions only grow: one that went back tells.
    """

    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self._highest: dict[bytes, int] = {}

    def highest(self, key: bytes) -> int:
        """Return the highest version met so far; ask before reading."""
        return self._highest.get(key, 0)

    def check(self, key: bytes, found: Versioned | None, at_least: int) -> None:
        """Compare what was read with ``highest`` as it was before the reading began.

        Raises:
            StoreUnavailableError: the version went back.
        """
        version = found.version if found is not None else 0
        if version < at_least:
            raise StoreUnavailableError(
                f"the store member {self._member_id} was emptied or replaced while in use.",
                cure="What it held is read from other replicas; restart the job, then repair.",
            )
        self._highest[key] = max(version, self._highest.get(key, 0))


def code_of(error: ClientError) -> str:
    """Return the code of an error answer."""
    return str(error.response.get("Error", {}).get("Code", ""))


def parsed(url: str, own_options: Iterable[str], example: str) -> NetworkUrl:
    """Take the URL of an AWS member apart.

    Raises:
        ConfigurationError: it is not right, or holds credentials.
    """
    found = NetworkUrl.parse(url, (*OPTIONS, *own_options), example)
    endpoint = found.options.get("endpoint_url", "https://")
    if found.username or found.password or found.port or "@" in endpoint:
        raise ConfigurationError(
            f"a {found.scheme}:// store URL takes no user, password or port.",
            cure="Give credentials as boto3 takes them: environment, profile or role.",
        )
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the option endpoint_url of the {found.scheme}:// store URL of {found.host}: "
            "expected http:// or https:// and a host."
        )
    return found


def _is_servers_fault(error: ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return bool(status >= 500)
