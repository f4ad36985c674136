"""Client of a schema registry with Confluent's protocol.

A message begins with a zero byte and the four-byte number of its schema. A number's schema never
changes, so each process requests it once.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit

from dagster_jet.core.secret import Url, shown, text_of
from dagster_jet.errors import ExecutorLostError, SourceError

_CALL_S, _GIVE_UP_S, _PAUSE_S = 5.0, 30.0, 0.5
_REFUSED = (401, 403)
_UNKNOWN = 404

_schemas: dict[tuple[str, int], dict[str, Any] | None] = {}


@dataclass(frozen=True)
class SchemaRegistry:
    """Client for the registry at a URL; pickled without the value of a secret."""

    url: Url
    """URL; a user and password in it are sent as basic authentication."""

    def schema(self, number: int) -> dict[str, Any] | None:
        """Returns the registry's entry for a schema; None if the number is unknown.

        Raises:
            SourceError: the registry denies access.
            ExecutorLostError: no answer for 30 seconds.
        """
        url = text_of(self.url)
        if (url, number) not in _schemas:
            found = self._asked(url, number)
            if found is None:
                return None  # may be registered later
            _schemas[url, number] = found
        return _schemas[url, number]

    def _asked(self, url: str, number: int) -> dict[str, Any] | None:
        began = time.monotonic()
        while True:
            try:
                with urllib.request.urlopen(_request(url, number), timeout=_CALL_S) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found
            except urllib.error.HTTPError as error:
                if error.code == _UNKNOWN:
                    return None
                if error.code in _REFUSED:
                    raise SourceError(
                        f"the schema registry {shown(self.url)} refuses the request: {error.code}.",
                        cure="Correct the user and the password in its URL: Secret(env=...).",
                    ) from None
                why = f"it answers {error.code}"
            except (OSError, ValueError, HTTPException) as error:
                why = type(error).__name__  # its text may contain the URL
            if time.monotonic() - began > _GIVE_UP_S:
                raise ExecutorLostError(
                    f"the schema registry {shown(self.url)} cannot be reached: {why}.",
                    cure="The job restarts from its last snapshot.",
                )
            time.sleep(_PAUSE_S)


def _request(url: str, number: int) -> urllib.request.Request:
    parts = urlsplit(url)
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
    request = urllib.request.Request(f"{place}/schemas/ids/{number}")
    if parts.username:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    return request
