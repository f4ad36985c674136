"""How one execution has ended, what the record says of it, and what that means for the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dagster_jet.errors import (
    FencedError,
    JetError,
    Reaction,
    SnapshotFailedError,
    StoreUnavailableError,
)
from dagster_jet.execution.events import StageProgress
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.protocol import Stop, StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause


@dataclass(frozen=True)
class EndedExecution:
    """What one execution came to."""

    stop: Stop
    record: ExecutionRecord | None
    """None: it has not won the job."""
    failure: JetError | None
    """The error behind the stop, with everything it names."""
    undecided: str | None = None
    """Why epochs were left without a snapshot; None if none were."""
    progressed: bool = False
    """It has decided a snapshot; or it was well for long, and left nothing to decide."""
    stages: Mapping[str, Counters | StageProgress] = field(default_factory=dict)

    @property
    def execution_id(self) -> int:
        return self.record.execution_id if self.record is not None else 0

    @property
    def last_record(self) -> ExecutionRecord | None:
        """What it leaves in the record; None where that is not its to touch."""
        if not self.stop.write_status or self.record is None:
            return None
        cause = self.stop.cause
        is_failure = cause in (StopCause.ERROR, StopCause.GAVE_UP, StopCause.CANCEL)
        failure = self.stop.reason if is_failure else None
        return replace(self.record, status=self.stop.status, cause=cause, failure=failure)

    def not_written(self, job: str) -> EndedExecution:
        """The same, to be said once more by another execution."""
        error = StoreUnavailableError(
            "that it was asked to stop could not be written down: the job may be started again.",
            job=job,
            cure="Ask for it again when the store answers.",
        )
        return replace(self, stop=replace(self.stop, restart=True), failure=error)

    def given_up(self, attempts: int) -> EndedExecution:
        """The same, and no other execution follows: so many have failed in a row."""
        several = f"gave up after {attempts} failed executions: " if attempts > 1 else ""
        stop = replace(
            self.stop,
            cause=StopCause.GAVE_UP,
            reason=f"{several}{self.stop.reason}",
            restart=False,
            # Another status than this one: a write is on its way, and the record not ours to touch.
            write_status=self.stop.status is JobStatus.NOT_RUNNING,
        )
        return replace(self, stop=stop)

    def final_record(self, job: str, asked: StopKind | None) -> ExecutionRecord:
        """The record of a job that has ended with this execution.

        Args:
            asked: what it had been asked for.

        Raises:
            JetError: what it ended with, where nobody wanted it so.
        """
        stop, failure = self.stop, self.failure
        if stop.cause is StopCause.FENCED:
            if failure is not None and failure.reaction is Reaction.STOP:
                raise failure
            raise FencedError(  # whatever else it met once its successor had swept its files
                "a newer execution has taken the job over; this one has stopped.", job=job
            ) from failure
        has_failed = stop.status in (JobStatus.FAILED, JobStatus.SUSPENDED)
        if failure is not None and has_failed and stop.cause is not StopCause.CANCEL:
            raise failure
        if asked is None and self.undecided is not None:
            # Nobody asked it to stop: a run that was to drain has not done so.
            raise SnapshotFailedError(
                f"the last snapshot failed, its output is not committed: {self.undecided}.",
                job=job,
                cure="Run again: the job goes on from the snapshot before.",
            )
        if self.record is None:  # asked to stop while the job could not even be asked for
            raise failure or JetError(f"{stop.reason}.", job=job)
        return replace(self.record, status=stop.status)
