"""Requests through the store to a job that another process runs.

A request is a value in its own register, so it cannot disturb the execution record. The owner polls
the register while it has the job. A request is carried out once, by its number.
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
    """A kind of stop, and the execution that the requester has seen."""

    kind: StopKind
    execution_id: int

    def to_bytes(self) -> bytes:
        return json.dumps({"kind": self.kind.value, "execution_id": self.execution_id}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StopRequest | None:
        """None: the request of a newer version has an unknown kind."""
        fields = json.loads(data)
        try:
            return cls(StopKind(fields["kind"]), fields["execution_id"])
        except ValueError:
            _logger.warning("a request of an unknown kind is ignored: %r", fields["kind"])
            return None


def _register(job: str) -> str:
    return f"jobs/{job}/request"


def request(store: Store, job: str, kind: StopKind, execution_id: int) -> int:
    """Requests a stop of a running execution; returns the request's number.

    An earlier request to the same execution that may still be unread is not lost: the register
    keeps the effective one of the two (`stop_that_counts`).
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

    Watches from before the first execution until after the last one, because between executions the
    record says RUNNING. A request ends a back-off, and the next execution carries it out.
    """

    def __init__(self, store: Store, job: str, stop: StopSignal, *, last_execution_id: int) -> None:
        """`last_execution_id`: of the last execution before this process's own; 0: none."""
        super().__init__(f"jet-requests-{job}")
        self._store, self._job, self._stop = store, job, stop
        self._last_execution_id = last_execution_id
        self._seen: int | None = None
        """The number of the newest request; None until a first read has succeeded."""

    def __enter__(self) -> RequestWatcher:
        self.look()
        return super().__enter__()

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            self.look()

    def look(self) -> None:
        """Carries out a new request; called repeatedly by the watcher's thread."""
        try:
            value = self._store.register(_register(self._job)).read()
        except StoreError:
            return  # tried again at the next poll
        # Not the ballot: between a claim and its write the old request is under the new ballot.
        seen, self._seen = self._seen, value.sequence if value is not None else 0
        if value is None:
            return
        if value.sequence == seen:
            return
        request = StopRequest.from_bytes(value.value)
        if request is None:
            return
        # The register keeps the newest request for ever. On the first successful read only the
        # request's execution shows whether it is old, or came while reads failed.
        if seen is None:
            is_new = request.execution_id > self._last_execution_id
        else:
            is_new = value.sequence > seen
        if is_new:
            self._stop.request(request.kind)
