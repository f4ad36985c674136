"""What the AWS members share: their URLs, their errors, and a look out for places that go back.

Credentials come from where boto3 finds them (environment, profile, role); a URL has no place for
them, so they cannot leak from one.
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
    Cause.CREDENTIALS: "Check the credentials boto3 finds here, and what they are allowed.",
    Cause.PLACE: "Check the name and the region, or create it.",
    Cause.REQUEST: "Check the URL, and that the endpoint supports conditional writes.",
    Cause.FULL: "Give it more room, or a larger quota.",
}


def member_access(service: str, url: NetworkUrl, member_id: str, timeout_s: float) -> AwsAccess:
    """One AWS service as one member uses it; raises the errors of the ``Member`` contract.

    Args:
        service: as boto3 names it.
        url: the member's URL.
        member_id: for the messages.
        timeout_s: how long one answer may take unless the URL says it.

    Raises:
        ConfigurationError: an option is not right.
    """

    def as_error(failure: AwsFailure) -> StoreError:
        if failure.cause is not Cause.OUTAGE:
            return StoreUnwritableError(
                f"the store member {member_id} cannot be used: {failure.text}.",
                cure=_CURES[failure.cause],
            )
        doubt = " Whether the value was set is unknown." if failure.is_doubtful else ""
        return StoreUnavailableError(
            f"the store member {member_id} does not answer as it should: {failure.text}.{doubt}",
            cure="Other replicas serve meanwhile; check the way to it.",
        )

    settings = AwsSettings(
        region=url.options.get("region"),
        endpoint_url=url.options.get("endpoint_url"),
        connect_timeout_s=url.seconds("connect_timeout", 2),
        timeout_s=url.seconds("timeout", timeout_s),
    )
    return AwsAccess(service, settings, as_error)


class SeenVersions:
    """Notices a place that was emptied, or put back to an older state, while it is in use.

    Versioned values are never removed and their versions only grow: one that went back shows it.
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
