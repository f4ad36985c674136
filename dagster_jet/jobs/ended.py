"""The end of one execution, its entry in the record, and its consequence for the job."""

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
from dagster_jet.spark.cluster.executor_watch import ExecutorsGoneError


@dataclass(frozen=True)
class EndedExecution:
    """Result of one execution."""

    stop: Stop
    record: ExecutionRecord | None
    """None: the execution has not won the job."""
    failure: JetError | None
    """The error behind the stop, with its details."""
    undecided: str | None = None
    """Why epochs were left without a snapshot; None if none were."""
    progressed: bool = False
    """It decided a snapshot, or it was healthy for long and left nothing undecided."""
    stages: Mapping[str, Counters | StageProgress] = field(default_factory=dict)

    @property
    def execution_id(self) -> int:
        return self.record.execution_id if self.record is not None else 0

    @property
    def has_lost_executors(self) -> bool:
        """Whether it was well until executors left the cluster. A row that ends the executors of
        each execution lets none of them progress."""
        return self.progressed and isinstance(self.failure, ExecutorsGoneError)

    @property
    def last_record(self) -> ExecutionRecord | None:
        """The record that it leaves; None if it must not touch the record."""
        if not self.stop.write_status or self.record is None:
            return None
        cause = self.stop.cause
        is_failure = cause in (StopCause.ERROR, StopCause.GAVE_UP, StopCause.CANCEL)
        failure = self.stop.reason if is_failure else None
        return replace(self.record, status=self.stop.status, cause=cause, failure=failure)

    def not_written(self, job: str) -> EndedExecution:
        """The same end, to be written again by another execution."""
        error = StoreUnavailableError(
            "the request to stop could not be saved in the store: a supervisor may start the job "
            "again.",
            job=job,
            cure="Repeat the request when the store answers.",
        )
        return replace(self, stop=replace(self.stop, restart=True), failure=error)

    def given_up(self, attempts: int) -> EndedExecution:
        """The same end without another execution, after so many consecutive failures."""
        several = f"gave up after {attempts} failed executions: " if attempts > 1 else ""
        stop = replace(
            self.stop,
            cause=StopCause.GAVE_UP,
            reason=f"{several}{self.stop.reason}",
            restart=False,
            # With any other status a write is under way, and the record must not be touched.
            write_status=self.stop.status is JobStatus.NOT_RUNNING,
        )
        return replace(self, stop=stop)

    def final_record(self, job: str, asked: StopKind | None) -> ExecutionRecord:
        """The final record of a job that ended with this execution.

        Args:
            asked: the requested stop, if any.

        Raises:
            JetError: the error that ended the job, unless the end was requested.
        """
        stop, failure = self.stop, self.failure
        if stop.cause is StopCause.FENCED:
            if failure is not None and failure.reaction is Reaction.STOP:
                raise failure
            raise FencedError(  # hides errors from files that its successor has deleted
                "a newer execution has taken the job over; this one has stopped.", job=job
            ) from failure
        has_failed = stop.status in (JobStatus.FAILED, JobStatus.SUSPENDED)
        if failure is not None and has_failed and stop.cause is not StopCause.CANCEL:
            raise failure
        if asked is None and self.undecided is not None:
            # No stop was requested: a run that was to drain has not done so.
            raise SnapshotFailedError(
                f"the last snapshot failed, its output is not committed: {self.undecided}.",
                job=job,
                cure="Start the job again: it continues from the snapshot before.",
            )
        if self.record is None:  # a stop was requested before the claim succeeded
            raise failure or JetError(f"{stop.reason}.", job=job)
        return replace(self.record, status=stop.status)
