"""Schemas from a registry with Confluent's protocol, by the number that a message begins with.

A message begins with a zero byte and the four-byte number of its schema. A number's schema never
changes, so each process requests it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from dagster_jet.core.library import library
from dagster_jet.core.secret import Url, shown, text_of
from dagster_jet.errors import ExecutorLostError, SourceError

_CALL_S, _RETRIES, _PAUSE_MS, _LONGEST_PAUSE_MS = 5.0, 7, 1_000, 8_000
_REFUSED = (401, 403)
_UNKNOWN = 404


@dataclass(frozen=True)
class SchemaRegistry:
    """The registry at a URL; pickled without the value of a secret."""

    url: Url
    """URL; a user and password in it are sent as basic authentication."""

    def schema(self, number: int) -> Any:
        """Returns the client library's `Schema`; None if the number is unknown.

        Raises:
            SourceError: the registry denies access.
            ExecutorLostError: 8 requests failed, each after at most 5 seconds.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return _client(text_of(self.url)).get_schema(number)
        except SchemaRegistryError as error:
            if error.http_status_code == _UNKNOWN:
                return None  # may be registered later
            if error.http_status_code in _REFUSED:
                raise SourceError(
                    f"the schema registry {shown(self.url)} refuses the request: "
                    f"{error.http_status_code}.",
                    cure="Correct the user and the password in its URL: Secret(env=...).",
                ) from None
            why = f"it answers {error.http_status_code}"
        except Exception as error:  # noqa: BLE001 - the HTTP library's, which differs by version
            why = type(error).__name__  # its text may contain the URL
        raise ExecutorLostError(
            f"the schema registry {shown(self.url)} cannot be reached: {why}.",
            cure="The job restarts from its last snapshot.",
        )


def check_installed() -> None:
    """Raises `MissingEnvironmentError` without the client library."""
    needs = "A schema registry needs the package confluent-kafka[schemaregistry]"
    library("confluent_kafka.schema_registry", "dagster-jet[avro]", needs)


@cache
def _client(url: str) -> Any:
    """One client per process and URL; it keeps the schemas."""
    from confluent_kafka.schema_registry import SchemaRegistryClient

    parts = urlsplit(url)
    settings = {
        # The HTTP library logs URLs: this one has no password.
        "url": parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        "timeout": _CALL_S,
        "max.retries": _RETRIES,
        "retries.wait.ms": _PAUSE_MS,
        "retries.max.wait.ms": _LONGEST_PAUSE_MS,
    }
    if parts.username:
        password = unquote(parts.password or "")
        settings["basic.auth.user.info"] = f"{unquote(parts.username)}:{password}"
    return SchemaRegistryClient(settings)
