"""Shared code of the AWS members: URLs, errors, and detection of storage that was rolled back.

Credentials come from boto3's sources (environment, profile, role). A URL cannot contain them, so
they cannot leak from one.
"""

from __future__ import annotations

from collections.abc import Iterable

from dagster_jet.aws.access import AwsAccess, AwsFailure, AwsSettings, Cause
from dagster_jet.errors import (
    ConfigurationError,
    StoreError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.members.member import Versioned
from dagster_jet.store.members.network_url import NetworkUrl

OPTIONS = ("region", "endpoint_url", "connect_timeout", "timeout")

_CURES = {
    Cause.CREDENTIALS: "Check the credentials that boto3 finds here, and their permissions.",
    Cause.PLACE: "Check the name and the region, or create it.",
    Cause.REQUEST: "Check the URL, and that the endpoint supports conditional writes.",
    Cause.FULL: "Free space in it, or raise its quota.",
}


def member_access(service: str, url: NetworkUrl, member_id: str, timeout_s: float) -> AwsAccess:
    """Return the access to one AWS service that raises the errors of the ``Member`` contract.

    Args:
            service: the service's name in boto3.
            url: the member's URL.
            member_id: for the messages.
            timeout_s: time limit of one response, unless the URL sets it.

        Raises:
            ConfigurationError: an option is not valid.
    """

    def as_error(failure: AwsFailure) -> StoreError:
        error = named(failure)
        error.was_not_applied = failure.is_doubtful is False
        return error

    def named(failure: AwsFailure) -> StoreError:
        if failure.cause is not Cause.OUTAGE:
            return StoreUnwritableError(
                f"the store member {member_id} cannot be used: {failure.text}.",
                cure=_CURES[failure.cause],
            )
        doubt = " Whether the value was set is unknown." if failure.is_doubtful else ""
        return StoreUnavailableError(
            f"the store member {member_id} does not answer as it should: {failure.text}.{doubt}",
            cure="Other replicas are used meanwhile. Check the network to the member.",
        )

    settings = AwsSettings(
        region=url.options.get("region"),
        endpoint_url=url.options.get("endpoint_url"),
        connect_timeout_s=url.seconds("connect_timeout", 2),
        timeout_s=url.seconds("timeout", timeout_s),
    )
    return AwsAccess(service, settings, as_error)


class SeenVersions:
    """Detects storage that was emptied or rolled back while in use.

    Versioned values are never removed and versions only grow, so a smaller version reveals it.
    """

    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self._highest: dict[bytes, int] = {}

    def highest(self, key: bytes) -> int:
        """Return the highest version seen so far; call it before reading."""
        return self._highest.get(key, 0)

    def check(self, key: bytes, found: Versioned | None, at_least: int) -> None:
        """Compare a version that was read with ``highest`` from before the read.

        Raises:
            StoreUnavailableError: the version decreased.
        """
        version = found.version if found is not None else 0
        if version < at_least:
            raise StoreUnavailableError(
                f"the store member {self._member_id} was emptied or replaced while in use.",
                cure="Its data is read from other replicas. Restart the job, then run "
                "'dagster-jet store repair'.",
            )
        self._highest[key] = max(version, self._highest.get(key, 0))


def parsed(url: str, own_options: Iterable[str], example: str) -> NetworkUrl:
    """Parse the URL of an AWS member.

    Raises:
        ConfigurationError: the URL is not valid, or contains credentials.
    """
    found = NetworkUrl.parse(url, (*OPTIONS, *own_options), example)
    endpoint = found.options.get("endpoint_url", "https://")
    if found.username or found.password or found.port or "@" in endpoint:
        raise ConfigurationError(
            f"a {found.scheme}:// store URL takes no user, password or port.",
            cure="Give the credentials by one of boto3's own ways: environment, profile or role.",
        )
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the option endpoint_url of the {found.scheme}:// store URL of {found.host}: "
            "expected http:// or https:// and a host."
        )
    return found
