"""A job that another process runs, as seen and steered through the store."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dagster_jet.engine import requests
from dagster_jet.engine.record_keeper import read_record
from dagster_jet.errors import JobStateError
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from dagster_jet.store import Store

_POLL_S = 0.2


@dataclass(frozen=True)
class RemoteJob:
    """Asks travel as requests; the owning process carries them out and the record shows it."""

    store: Store
    name: str

    @property
    def record(self) -> ExecutionRecord | None:
        return read_record(self.store, self.name)

    @property
    def status(self) -> JobStatus:
        record = self.record
        return record.status if record is not None else JobStatus.NOT_RUNNING

    def suspend(self) -> None:
        """Terminal snapshot, then SUSPENDED."""
        self.request(StopKind.SUSPEND)

    def restart(self) -> None:
        """Terminal snapshot, then a new execution in the same process."""
        self.request(StopKind.RESTART)

    def complete(self) -> None:
        """Takes what is there, then the inputs are over: every window is closed and committed."""
        self.request(StopKind.COMPLETE)

    def cancel(self) -> None:
        """Stops without a snapshot; the job is FAILED (cancelled)."""
        self.request(StopKind.CANCEL)

    def request(self, kind: StopKind) -> int:
        """Asks the running execution to stop in a certain way; returns at once.

        Raises:
            JobStateError: nothing is running.
        """
        record = self.record
        if record is None or not record.status.is_live:
            status = record.status.value if record else "unknown"
            raise JobStateError(
                f"cannot {kind.value}: the job is {status}.", job=self.name, cure="Start it first."
            )
        return requests.request(self.store, self.name, kind, record.execution_id)

    def join(self, timeout: float | None = None) -> JobStatus:
        """Waits until no execution is live; returns the status it ended with.

        Raises:
            TimeoutError: still running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.status).is_live:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.name!r} is still {status.value}")
            time.sleep(_POLL_S)
        return status
