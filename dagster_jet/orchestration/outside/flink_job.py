"""A Flink job, by Flink's REST API."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from dagster_jet.core.secret import Url, shown, text_of
from dagster_jet.errors import SourceUnavailableError
from dagster_jet.orchestration.outside.reading import Reading

Answer = Callable[[str], Any]
"""Returns Flink's JSON answer for a path below the API's root."""

_ANSWER_S = 5.0
_UP = frozenset({"CREATED", "INITIALIZING", "RECONCILING", "RUNNING"})
_NO_WATERMARK = -(2**63)
_END_OF_INPUT = 2**63 - 1


@dataclass(frozen=True)
class FlinkJob:
    """A job by its name, or by its id of 32 hexadecimal digits."""

    url: Url
    job: str

    def read(self) -> Reading:
        """Reads state, checkpoints, watermarks and unread rows.

        Raises:
            SourceUnavailableError: the API does not answer, or not as Flink does.
        """
        try:
            return flink_reading(self._answer, self.job)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceUnavailableError(
                f"{shown(self.url)} does not answer as Flink's REST API does ({error!r})."
            ) from error

    def _answer(self, path: str) -> Any:
        try:
            asked = _request(f"{text_of(self.url).rstrip('/')}{path}")
            with urlopen(asked, timeout=_ANSWER_S) as response:
                answer = response.read()
        except HTTPError as error:
            why = f"HTTP {error.code} for {path}"
        except OSError as error:  # URLError and TimeoutError, too
            why = str(getattr(error, "reason", error))
        except (HTTPException, ValueError) as error:
            why = type(error).__name__  # its text may have the URL, with its password
        else:
            return json.loads(answer)
        raise SourceUnavailableError(f"Flink at {shown(self.url)}: {why}.")


def _request(url: str) -> Request:
    """Returns a request with the URL's user and password, if any, as basic authentication."""
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    request = Request(parts._replace(netloc=place).geturl())
    if user:
        encoded = b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    return request


def flink_reading(answer: Answer, job: str) -> Reading:
    """Returns the reading of a job; of several with one name, of the one that started last.

    Args:
        answer: asks the API.
        job: name or id.
    """
    overview = answer("/jobs/overview")["jobs"]
    found = [one for one in overview if job in (one["jid"], one["name"])]
    if not found:
        return Reading("", f"no job is named {job!r}", is_up=False)
    newest = max(found, key=lambda one: int(one["start-time"]))
    job_id, state = str(newest["jid"]), str(newest["state"])
    if state not in _UP:
        return Reading("", state, is_up=False, details={"job": job_id})
    root = f"/jobs/{job_id}"
    checkpoints = answer(f"{root}/checkpoints")
    completed = (checkpoints.get("latest") or {}).get("completed") or {}
    counts = checkpoints["counts"]
    number = completed.get("id")
    committed_at_ms = completed.get("latest_ack_timestamp")
    if committed_at_ms is None and counts["total"]:
        committed_at_ms = newest["start-time"]
    vertices = [(str(one["id"]), str(one["name"])) for one in answer(root)["vertices"]]
    (restarts,) = answer(f"{root}/metrics?get=numRestarts") or [{"value": "0"}]
    return Reading(
        "" if number is None else f"{job_id}:{number}",
        state,
        committed_at_ms=committed_at_ms,
        watermark_ms=_watermark(answer, root, (vertex for vertex, _ in vertices)),
        lag=_pending(answer, root, (vertex for vertex, name in vertices if "Source: " in name)),
        details={
            "job": job_id,
            "checkpoint": number,
            "failed_checkpoints": counts["failed"],
            "restarts": int(restarts["value"]),
        },
    )


def _watermark(answer: Answer, root: str, vertices: Iterable[str]) -> int | None:
    """Returns the lowest watermark of all subtasks, if each that has input has one."""
    found = [
        int(one["value"])
        for vertex in vertices
        for one in answer(f"{root}/vertices/{vertex}/watermarks")
    ]
    lowest = min(found, default=_NO_WATERMARK)
    return lowest if _NO_WATERMARK < lowest < _END_OF_INPUT else None


def _pending(answer: Answer, root: str, sources: Iterable[str]) -> int | None:
    """Returns the unread rows of all sources, or None if no source reports them."""
    found: list[float] = []
    for vertex in sources:
        place = f"{root}/vertices/{vertex}/subtasks/metrics"
        names = [one["id"] for one in answer(place) if one["id"].endswith(".pendingRecords")]
        for name in names:
            sums: Iterable[Mapping[str, Any]] = answer(f"{place}?get={quote(name)}&agg=sum")
            found += [float(one["sum"]) for one in sums]
    return round(sum(found)) if found else None
