"""Requests to a job that another process runs: they go through the store.

A request is a value in a register of its own, so that asking cannot disturb the execution record.
The owner looks at it as long as it has the job; a request is carried out once, by number.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from dagster_jet.errors import StoreError
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.snapshot.protocol import StopKind, stop_that_counts
from dagster_jet.store import Store
from dagster_jet.system.background_thread import BackgroundThread

_logger = logging.getLogger(__name__)

_POLL_S = 0.5


@dataclass(frozen=True)
class StopRequest:
    """How an execution is to stop, and which one it was that the asker has seen."""

    kind: StopKind
    execution_id: int

    def to_bytes(self) -> bytes:
        return json.dumps({"kind": self.kind.value, "execution_id": self.execution_id}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StopRequest | None:
        """None: a newer version asks for what this one does not know."""
        fields = json.loads(data)
        try:
            return cls(StopKind(fields["kind"]), fields["execution_id"])
        except ValueError:
            _logger.warning("a request of an unknown kind is passed over: %r", fields["kind"])
            return None


def _register(job: str) -> str:
    return f"jobs/{job}/request"


def request(store: Store, job: str, kind: StopKind, execution_id: int) -> int:
    """Asks a running execution to stop in the given way; returns the request's number.

    What the same execution was asked for before and may not have heard yet is not forgotten over
    it: of the two the register keeps the one that counts (`stop_that_counts`).
    """

    def change(current: bytes | None) -> bytes:
        before = None if current is None else StopRequest.from_bytes(current)
        counts = kind
        if before is not None and before.execution_id == execution_id:
            counts = stop_that_counts(before.kind, kind)
        return StopRequest(counts, execution_id).to_bytes()

    written = store.update_register(_register(job), change)
    assert written is not None
    return written.sequence


class RequestWatcher(BackgroundThread):
    """Turns requests for a job's executions in this process into stop signals, on its own thread.

    From before the first execution until after the last, because the record says RUNNING between
    them too: what is asked for during a back-off ends it, and the next execution carries it out.
    """

    def __init__(self, store: Store, job: str, stop: StopSignal, *, last_execution_id: int) -> None:
        """`last_execution_id`: of the last execution before this process's own; 0 if none was."""
        super().__init__(f"jet-requests-{job}")
        self._store, self._job, self._stop = store, job, stop
        self._last_execution_id = last_execution_id
        self._seen: int | None = None
        """The number of the newest request; None until a first look has succeeded."""

    def __enter__(self) -> RequestWatcher:
        self.look()
        return super().__enter__()

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            self.look()

    def look(self) -> None:
        """Carries out what is new in the register. The watcher's thread calls it, over and over."""
        try:
            value = self._store.register(_register(self._job)).read()
        except StoreError:
            return  # in a moment again
        # Not the ballot: between a claim and its write the old request stands under the new ballot.
        seen, self._seen = self._seen, value.sequence if value is not None else 0
        if value is None:
            return
        if value.sequence == seen:
            return
        request = StopRequest.from_bytes(value.value)
        if request is None:
            return
        # The register holds the newest request for ever. Whether what a first look finds is an old
        # one, or has come while looks failed, only the execution that it was made to can tell.
        if seen is None:
            is_new = request.execution_id > self._last_execution_id
        else:
            is_new = value.sequence > seen
        if is_new:
            self._stop.request(request.kind)
