"""The end of an execution: by a stop request, a failure, or an unknown outcome of a decision."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.snapshot.protocol import Failed, Stop, StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause


@dataclass
class Ending:
    """Tracks why an execution will end, and builds the `Stop`."""

    suspend_on_failure: bool = False
    asked: StopKind | None = None
    """The stop that is being carried out; a cancel overrides all but COMPLETE."""
    is_cancelled: bool = False
    """A cancel came while the job was completing. It counts if that fails."""
    failed_meanwhile: Failed | None = None
    """The first failure while a decision or its commits are under way; it is handled afterwards."""

    def as_asked(self) -> Stop:
        """The stop once the request has been carried out."""
        kind = self.asked
        assert kind is not None
        restarts = kind is StopKind.RESTART
        return Stop(
            kind.final_status,
            kind.cause,
            "cancelled" if kind.cause is StopCause.CANCEL else kind.value,
            restart=restarts,
            # Between the two executions observers see a running job, so it can be asked to stop.
            write_status=not restarts,
        )

    @property
    def may_begin_again(self) -> bool:
        """False once a stop was requested after which the job stays down in any case (F21)."""
        asked = self.asked
        return not self.is_cancelled and asked in (None, StopKind.RESTART, StopKind.COMPLETE)

    def is_last(self, failed: Failed) -> bool:
        """Whether no other execution begins by itself after this failure. Then nobody else may make
        the commits that are under way."""
        return not (failed.restartable and self.may_begin_again)

    def fenced(self, record: ExecutionRecord | None) -> Stop:
        """A newer execution owns the job: the record is not written and nothing is deleted."""
        status = JobStatus.NOT_RUNNING if record is None else record.status
        return Stop(status, StopCause.FENCED, "a newer execution owns the job")

    def undecided(self, record: ExecutionRecord) -> Stop:
        """Nothing is committed or deleted; the next execution reads the record."""
        reason = "the outcome of a record write is unknown"
        again = self.may_begin_again
        return Stop(record.status, StopCause.UNDECIDED, reason, restart=again)

    def failed(self, reason: str, *, restartable: bool) -> Stop:
        """The stop after a failure. It overwrites the status, so no decision may be under way."""
        if restartable and self.may_begin_again:
            return Stop(JobStatus.NOT_RUNNING, StopCause.ERROR, reason, restart=True)
        kind = StopKind.CANCEL if self.is_cancelled else self.asked
        if kind is not None and (restartable or kind is StopKind.CANCEL):
            return Stop(kind.final_status, kind.cause, reason, write_status=True)
        status = JobStatus.SUSPENDED if self.suspend_on_failure else JobStatus.FAILED
        return Stop(status, StopCause.ERROR, reason, write_status=True)

    def without_snapshot(self, reason: str) -> Stop:
        """The terminal snapshot failed: the job will resume from the previous snapshot."""
        if self.asked is StopKind.COMPLETE:
            return self.failed(f"the last snapshot failed: {reason}", restartable=True)
        return self.as_asked()
