"""Detects from outside, by watching the lease, that the owner of a job is dead."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dagster_jet.ownership.lease import is_owner_alive, wall_clock_ms
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, StopCause
from dagster_jet.store import Store

_POLL_S = 0.2


@dataclass
class LeaseWatch:
    """Watches a lease: a renewed lease has a living owner; one that is unchanged for its time to
    live has a dead one. It uses this process's monotonic clock: the owner's may differ by years.
    """

    clock: Callable[[], float] = time.monotonic
    _first: Lease | None = None
    _since: float = 0.0

    def sees(self, record: ExecutionRecord) -> bool | None:
        """Return whether the owner of a live record is alive; None: not known yet, call again."""
        lease = record.lease
        if lease is None or is_owner_alive(lease) is False:
            return False
        if self._first is None or self._first.owner != lease.owner:
            self._first, self._since = lease, self.clock()
        elif self._first != lease:
            self._first, self._since = lease, self.clock()
            return True
        return False if self.clock() - self._since >= lease.ttl_ms / 1000 else None


def observed(store: Store, job: str) -> ExecutionRecord | None:
    """Return a job's record with its actual status: NOT_RUNNING if the owner is dead.

    Returns at once if the lease looks fresh; else watches it, for its time to live at most. None:
    the job never ran, or was deleted.
    """
    watch, current = LeaseWatch(), read_record(store, job)
    while current is not None and current.status.is_live:
        seen = watch.sees(current)
        if seen is None and _looks_fresh(current.lease):
            return current  # informative only: no decision compares clocks
        if seen is not None:
            return current if seen else as_lost(current)
        time.sleep(_POLL_S)
        current = read_record(store, job)
    return current


def as_lost(record: ExecutionRecord) -> ExecutionRecord:
    """Return the record of a job whose owner is dead."""
    lease = record.lease
    who = f"process {lease.pid} on {lease.host}" if lease is not None else "its owner"
    why = (
        f"{who} is gone"
        if lease is None or is_owner_alive(lease) is False
        else (f"{who} has not renewed its lease for {lease.ttl_ms / 1000:g} s")
    )
    failure = f"execution {record.execution_id} is dead: {why}"
    return replace(
        record,
        status=JobStatus.NOT_RUNNING,
        cause=StopCause.LOST,
        lease=None,
        failure=failure,
        # It was healthy until then, even if it had nothing to take a snapshot of.
        updated_at_ms=max(record.updated_at_ms, lease.renewed_at_ms if lease is not None else 0),
    )


def _looks_fresh(lease: Lease | None) -> bool:
    return lease is not None and 0 <= wall_clock_ms() - lease.renewed_at_ms < lease.ttl_ms
