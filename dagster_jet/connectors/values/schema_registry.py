"""A schema registry that speaks Confluent's protocol: which schema a message was written with.

Such a message begins with a zero and the number of its schema, four bytes. What a number stands for
never changes, so each is asked for once in a process.
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
    """Where it is; picklable, without the value of a secret."""

    url: Url
    """A user and a password in it are sent as basic authentication."""

    def schema(self, number: int) -> dict[str, Any] | None:
        """What the registry says of a schema; None: it has none of this number.

        Raises:
            SourceError: it refuses us.
            ExecutorLostError: it has not answered for half a minute.
        """
        url = text_of(self.url)
        if (url, number) not in _schemas:
            found = self._asked(url, number)
            if found is None:
                return None  # it may get one
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
                        f"the schema registry {shown(self.url)} refuses: {error.code}.",
                        cure="Correct the user and the password in its URL: Secret(env=...).",
                    ) from None
                why = f"it answers {error.code}"
            except (OSError, ValueError, HTTPException) as error:
                why = type(error).__name__  # its text may have the URL in it
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
