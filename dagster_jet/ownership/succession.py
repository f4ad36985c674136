"""Decides when a standby takes a job over. Pure: it sees records, and asks only its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from dagster_jet.ownership.liveness import LeaseWatch
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, StopCause

_RETURNS_WITHIN_S = 60.0
"""A process whose execution failed begins the next one after a pause of up to 30 seconds."""


class Succession(Enum):
    """A standby's part in a job."""

    WAITS = "waits"
    """The owner lives, or is about to begin its next execution."""
    TAKES_OVER = "takes over"
    """Nobody has the job: its owner is dead, has shut down, or never was."""
    ENDS = "ends"
    """The job has ended: completed, failed, suspended or cancelled. Or nobody wants it to run, or
    another standby replaces this one."""


@dataclass
class SuccessionWatch:
    """Watches a job's record and supervision for a standby.

    Attributes:
        clock: monotonic, in seconds.
        run_id: the orchestrator's id of the standby's run, by which a supervisor replaces it.
    """

    clock: Callable[[], float] = time.monotonic
    run_id: str | None = None
    _leases: LeaseWatch = field(init=False)
    _idle: tuple[ExecutionRecord, float] | None = None
    """A record without an owner, and when it was first seen."""
    _has_seen: bool = False
    """Whether there was a record; without one afterwards, the job was deleted."""
    expired: Lease | None = None
    """The lease of the dead owner, if this watch has seen it expire."""

    def __post_init__(self) -> None:
        self._leases = LeaseWatch(self.clock)

    def forget(self) -> None:
        """To be called if the record cannot be read: its owner could perhaps not renew the lease
        meanwhile. The time to live begins anew."""
        self._leases, self._idle = LeaseWatch(self.clock), None

    def sees(
        self, record: ExecutionRecord | None, supervision: Supervision | None = None
    ) -> Succession:
        """Returns what the standby does now.

        Args:
            record: the job's record; None: it never ran, or was deleted.
            supervision: what is wanted of the job; None: that it runs.
        """
        if supervision is not None and self.run_id in supervision.replaced_standbys:
            return Succession.ENDS
        seen = self._sees(record)
        is_wanted = supervision is None or supervision.intent is Intent.ALWAYS_ON
        return seen if seen is not Succession.TAKES_OVER or is_wanted else Succession.ENDS

    def _sees(self, record: ExecutionRecord | None) -> Succession:
        if record is None:
            return Succession.ENDS if self._has_seen else Succession.TAKES_OVER
        self._has_seen = True
        if record.status.is_live:
            self._idle = None
            if self._leases.sees(record) is not False:
                return Succession.WAITS
            self.expired = record.lease
            return Succession.TAKES_OVER
        if record.status is not JobStatus.NOT_RUNNING:
            return Succession.ENDS
        if record.cause is StopCause.SHUTDOWN:
            return Succession.TAKES_OVER
        if record.cause is not None and (
            record.cause.stays_down or record.cause is StopCause.GAVE_UP
        ):
            return Succession.ENDS
        if self._idle is None or self._idle[0] != record:
            self._idle = record, self.clock()
        is_overdue = self.clock() - self._idle[1] >= _RETURNS_WITHIN_S
        return Succession.TAKES_OVER if is_overdue else Succession.WAITS
