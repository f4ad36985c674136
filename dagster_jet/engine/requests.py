"""Requests to a job that another process runs: they go through the store.

A request is a value in a register of its own, so that asking cannot disturb the execution record.
The owner looks at it while it runs; a request is carried out once, by number.
"""

from __future__ import annotations

import json
import threading
import uuid
from types import TracebackType

from dagster_jet.engine.stopping import StopSignal
from dagster_jet.errors import FencedError, StoreError
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.store import Store

_POLL_S = 0.5


def _register(job: str) -> str:
    return f"jobs/{job}/request"


def request(store: Store, job: str, kind: StopKind, execution_id: int) -> int:
    """Asks a running execution to stop in the given way; returns the request's number."""
    while True:
        register = store.register(_register(job))
        highest = register.highest_ballot()
        number = (highest.number if highest else 0) + 1
        try:
            owned = register.claim(number, uuid.uuid4().hex)
            owned.write(json.dumps({"kind": kind.value, "execution_id": execution_id}).encode())
        except FencedError:
            continue
        return number


class RequestWatcher:
    """Turns requests for the running execution into stop signals, on a thread of its own."""

    def __init__(self, store: Store, job: str, stop: StopSignal) -> None:
        self._store, self._job, self._stop = store, job, stop
        self._ended = threading.Event()
        self._seen = 0
        self._thread = threading.Thread(target=self._watch, name=f"jet-requests-{job}", daemon=True)

    def __enter__(self) -> RequestWatcher:
        self._seen = self._latest()[0]
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            number, kind = self._latest()
            if number > self._seen and kind is not None:
                self._seen = number
                self._stop.request(kind)

    def _latest(self) -> tuple[int, StopKind | None]:
        try:
            value = self._store.register(_register(self._job)).read()
        except StoreError:
            return self._seen, None  # asked again in a moment
        if value is None:
            return 0, None
        return value.ballot.number, StopKind(json.loads(value.value)["kind"])
