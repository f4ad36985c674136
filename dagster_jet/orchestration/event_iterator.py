"""Return type of `JetResource.run`."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, TypeAlias

import dagster as dg

from dagster_jet.orchestration.asset_reports import AssetEvent

JetEvent: TypeAlias = AssetEvent | dg.MaterializeResult[Any]
"""A report on an asset, or at the end of a run the output of an asset."""


class JetEventIterator(Generator[JetEvent, None, None]):
    """The asset events of one run of a pipeline, in order; ``yield from`` it inside an asset.

    It is a full generator, so that ``yield from`` forwards an interrupt or a close to the loop that
    watches the job, which then takes a terminal snapshot.
    """

    def __init__(self, events: Generator[JetEvent, None, None]) -> None:
        self._events = events

    def send(self, value: None, /) -> JetEvent:
        return self._events.send(value)

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> JetEvent:
        exception: Any = typ if isinstance(typ, BaseException) else val or typ
        if tb is not None and isinstance(exception, BaseException):
            exception = exception.with_traceback(tb)
        return self._events.throw(exception)

    def close(self) -> None:
        self._events.close()
