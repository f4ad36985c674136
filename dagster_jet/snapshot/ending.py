"""How an execution ends: as it was asked to, of a failure, or without knowing what was decided."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.snapshot.protocol import Failed, Stop, StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause


@dataclass
class Ending:
    """What is known of an execution's end while it runs, and the `Stop` that follows from it."""

    suspend_on_failure: bool = False
    asked: StopKind | None = None
    """The kind of stop that is being carried out; a cancel overrides all but COMPLETE."""
    failed_meanwhile: Failed | None = None
    """The first failure beside a decision that is on its way: it waits for that decision."""

    def as_asked(self) -> Stop:
        """The stop that was asked for is carried out."""
        kind = self.asked
        assert kind is not None
        restarts = kind is StopKind.RESTART
        return Stop(
            kind.final_status,
            kind.cause,
            "cancelled" if kind.cause is StopCause.CANCEL else kind.value,
            restart=restarts,
            # To whoever looks between the two executions the job runs: it can be asked to stop.
            write_status=not restarts,
        )

    @property
    def may_begin_again(self) -> bool:
        """False once a stop was asked for after which the job stays down, come what may (F21)."""
        return self.asked in (None, StopKind.RESTART, StopKind.COMPLETE)

    def fenced(self, record: ExecutionRecord) -> Stop:
        """Somebody else has the job: nothing is written, nothing cleaned up."""
        return Stop(record.status, StopCause.FENCED, "a newer execution owns the job")

    def undecided(self, record: ExecutionRecord) -> Stop:
        """Neither commit nor clean up: whoever starts next reads what the record says."""
        reason = "the outcome of a record write is unknown"
        again = self.may_begin_again
        return Stop(record.status, StopCause.UNDECIDED, reason, restart=again)

    def failed(self, reason: str, *, restartable: bool) -> Stop:
        """Something failed. No decision may be on its way: the status is written over it."""
        if restartable and self.may_begin_again:
            return Stop(JobStatus.NOT_RUNNING, StopCause.ERROR, reason, restart=True)
        kind = self.asked
        if kind is not None and (restartable or kind is StopKind.CANCEL):
            return Stop(kind.final_status, kind.cause, reason, write_status=True)
        status = JobStatus.SUSPENDED if self.suspend_on_failure else JobStatus.FAILED
        return Stop(status, StopCause.ERROR, reason, write_status=True)

    def without_snapshot(self, reason: str) -> Stop:
        """The terminal snapshot could not be taken: the job resumes from the one before it."""
        if self.asked is StopKind.COMPLETE:
            return self.failed(f"the last snapshot failed: {reason}", restartable=True)
        return self.as_asked()
