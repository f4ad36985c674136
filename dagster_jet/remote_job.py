"""A job that another process runs, as seen and steered through the store."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dagster_jet.engine import requests
from dagster_jet.engine.liveness import LeaseWatch, observed
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
        """NOT_RUNNING also where the record says otherwise, but its owner is gone: to be sure of
        that may take the time to live of its lease."""
        record = self.record
        return observed(self.store, record).status if record else JobStatus.NOT_RUNNING

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
            JobStateError: nothing is running, or what was running is dead.
        """
        record = self.record
        if record is not None:
            record = observed(self.store, record)
        if record is None or not record.status.is_live:
            status = record.status.value if record else "unknown"
            why = f" ({record.failure})" if record and record.failure else ""
            raise JobStateError(
                f"cannot {kind.value}: the job is {status}{why}.",
                job=self.name,
                cure="Start it first.",
            )
        return requests.request(self.store, self.name, kind, record.execution_id)

    def join(self, timeout: float | None = None) -> JobStatus:
        """Waits until no execution is live; returns the status it ended with, NOT_RUNNING if its
        owner has gone without a word.

        Raises:
            TimeoutError: still running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        watch = LeaseWatch()
        while (record := self.record) is not None and record.status.is_live:
            if watch.sees(record) is False:
                return JobStatus.NOT_RUNNING
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.name!r} is still {record.status.value}")
            time.sleep(_POLL_S)
        return record.status if record is not None else JobStatus.NOT_RUNNING
