"""What everybody may do with a job, wherever it runs, and what it comes to: the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus


@dataclass(frozen=True)
class JobResult:
    """What a run came to. Rows are totals of the job since it began, not of this run alone."""

    status: JobStatus
    rows_in: int
    """Read from sources. 0 of a DAG, whose items nobody counts; so is `rows_out`."""
    rows_out: int
    """Written to sinks."""
    snapshot_id: int | None
    """The newest snapshot; None if there is none."""
    epochs: int
    """Epochs that this run ran in this process; 0 of a job that runs elsewhere."""
    restarts: int = 0
    """Executions that began because an earlier one ended without having been asked to."""
    rows_rejected: int = 0
    """Of `rows_in`, or of what came to a stage: the dead letters."""
    ignored_input: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of a COMPLETED job that was run again: what waits in its sources and is not read."""


class Job(Protocol):
    """A job in the hands of whoever asks about it or steers it.

    There are three kinds with one contract: a pipeline that this process runs (`Jet.submit`), a
    pipeline that another process runs (`Jet.job`), and a DAG in this process's memory
    (`Jet.submit`). What a kind cannot do it refuses with `JobStateError`.

    Times are seconds; None waits for ever. A `TimeoutError` ends the waiting only: what was asked
    for stands, and is carried out later.

    Example:
        >>> job = jet.submit(pipeline)                  # doctest: +SKIP
        >>> job.suspend().status                        # doctest: +SKIP
        <JobStatus.SUSPENDED: 'SUSPENDED'>
    """

    @property
    def name(self) -> str:
        """The pipeline's or the DAG's."""
        ...

    @property
    def status(self) -> JobStatus:
        """Where the job is in its life, now. Of a job elsewhere whose process is gone:
        NOT_RUNNING; to be sure of that may take the time to live of its lease.

        Raises:
            StoreUnavailableError: too few members of the store answer.
        """
        ...

    def result(self, timeout: float | None = None) -> JobResult:
        """Waits until the job does not run any more, and says what it came to.

        Raises:
            TimeoutError: it still runs.
            JetError: what it ended with, unless somebody had asked for the end. Of a job elsewhere
                a `JobFailedError` with the words of its record.
        """
        ...

    def join(self, timeout: float | None = None) -> JobResult:
        """`result`, by the name that Jet gives it."""
        return self.result(timeout)

    def request_stop(self, kind: StopKind) -> None:
        """Asks for a stop and returns at once. `StopKind` says what each is.

        Asking again is no error. CANCEL overrides everything that was asked for before.

        Raises:
            JobStateError: the job does not run, or cannot stop in this way.
        """
        ...

    def suspend(self, timeout: float | None = 60) -> JobResult:
        """Asks for a terminal snapshot, after which the job is SUSPENDED, and waits for it.

        Returns:
            What the job came to; look at its status: it may have come to its own end before.

        Raises:
            JobStateError: it does not run.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.SUSPEND)
        return self.result(timeout)

    def cancel(self, timeout: float | None = 60) -> JobResult:
        """Asks for an end without a snapshot, after which the job is FAILED, and waits for it.

        What was committed stays; submitted again the job goes on from its last snapshot.

        Raises:
            JobStateError: it does not run.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.CANCEL)
        return self.result(timeout)

    def complete(self, timeout: float | None = None) -> JobResult:
        """Takes what is there, then the inputs are over: every window is closed and committed, and
        the job is COMPLETED. Waits for it.

        Raises:
            JobStateError: it does not run, or is a DAG: its inputs are over when its processors
                say so.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.COMPLETE)
        return self.result(timeout)

    def restart(self) -> None:
        """Asks for a terminal snapshot, after which a new execution goes on from it, in the same
        process. Returns at once; whoever waits for the result waits on.

        Raises:
            JobStateError: it does not run.
        """
        self.request_stop(StopKind.RESTART)

    def resume(self) -> None:
        """Goes on from the last snapshot after `suspend`; returns once the job is starting.

        Raises:
            JobStateError: it is not suspended, or this process does not have its pipeline: then
                `Jet.submit` resumes it.
        """
        ...
