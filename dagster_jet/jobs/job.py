"""What everybody may do with a job, wherever it runs, and what it comes to: the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dagster_jet.snapshot.export import Export
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus


@dataclass(frozen=True)
class JobResult:
    """The result of a run. Rows are totals of the job since it began, not of this run alone."""

    status: JobStatus
    rows_in: int
    """Read from sources. 0 for a DAG, whose items are not counted; so is `rows_out`."""
    rows_out: int
    """Written to sinks."""
    snapshot_id: int | None
    """The newest snapshot; None if there is none."""
    epochs: int
    """Epochs of this run in this process; 0 for a job that runs in another process."""
    restarts: int = 0
    """Executions that began because an earlier one ended without having been asked to."""
    rows_rejected: int = 0
    """Dead letters, of sources and of stages."""
    ignored_input: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """If a COMPLETED job was run again: what waits in its sources and is not read."""


class Job(Protocol):
    """A job, to ask about and to control.

    There are three kinds with one contract: a pipeline that this process runs (`Jet.submit`), a
    pipeline that another process runs (`Jet.job`), and a DAG in the memory of this process
    (`Jet.submit`). A kind refuses what it cannot do with `JobStateError`.

    Times are in seconds; None waits for ever. A `TimeoutError` ends only the waiting: the request
    stays, and is carried out later.

    Example:
        >>> job = jet.submit(pipeline)                  # doctest: +SKIP
        >>> job.suspend().status                        # doctest: +SKIP
        <JobStatus.SUSPENDED: 'SUSPENDED'>
    """

    @property
    def name(self) -> str:
        """The name of the pipeline or of the DAG."""
        ...

    @property
    def status(self) -> JobStatus:
        """Where the job is in its life, now.

        A job of another process that has died is NOT_RUNNING. To find that out may take the time
        to live of the job's lease (`JobConfig.lease_ttl`).

        Raises:
            StoreUnavailableError: too few members of the store answer.
        """
        ...

    def result(self, timeout: float | None = None) -> JobResult:
        """Waits until the job does not run any more, and returns its result.

        Raises:
            TimeoutError: it still runs.
            JetError: what it ended with, unless somebody has asked for the end. For a job of
                another process it is a `JobFailedError` with the text of the job's record.

        Example:
            >>> job.result(timeout=60).rows_out             # doctest: +SKIP
        """
        ...

    def join(self, timeout: float | None = None) -> JobResult:
        """Waits as `result` does; this is the name in Hazelcast Jet."""
        return self.result(timeout)

    def request_stop(self, kind: StopKind) -> None:
        """Asks the job to stop and returns at once. `StopKind` says what each kind does.

        To ask again is no error. CANCEL overrides every earlier request.

        Raises:
            JobStateError: the job does not run, or cannot stop in this way.

        Example:
            >>> job.request_stop(StopKind.CANCEL)           # doctest: +SKIP
        """
        ...

    def suspend(self, timeout: float | None = 60) -> JobResult:
        """Asks for a terminal snapshot, after which the job is SUSPENDED, and waits for it.

        Returns:
            The result. Look at its status: the job may have ended by itself before.

        Raises:
            JobStateError: it does not run.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.SUSPEND)
        return self.result(timeout)

    def cancel(self, timeout: float | None = 60) -> JobResult:
        """Asks for an end without a snapshot, after which the job is FAILED, and waits for it.

        What was committed stays. If the job is submitted again, it goes on from its last snapshot.

        Raises:
            JobStateError: it does not run.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.CANCEL)
        return self.result(timeout)

    def complete(self, timeout: float | None = None) -> JobResult:
        """Asks the job to read what is there and then end, as COMPLETED, and waits for it.

        The inputs end then: every window is closed and committed.

        Raises:
            JobStateError: it does not run, or is a DAG, whose inputs end when its processors say
                so.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.COMPLETE)
        return self.result(timeout)

    def export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        """Keeps a snapshot under a name, until it is deleted, and waits until it is there.

        Of a running job it is the first snapshot that has all that the job has read by then; the
        job goes on meanwhile. Of a job that is down it is the last committed one. The export
        outlives retention, garbage collection, and the job's further life:
        `JobConfig(initial_snapshot=name)` starts this job or another one from it.

        Args:
            name: unique in the namespace: letters, digits, dots, dashes and underscores.
            timeout: of the waiting.

        Raises:
            ConfigurationError: it cannot have this name.
            JobStateError: there is one of this name; the job has no committed snapshot; a DAG's
                snapshots are in memory.
            TimeoutError: it is not there yet. The request stays, also after a crash.

        Example:
            >>> job.export_snapshot("before-upgrade").epoch_id   # doctest: +SKIP
        """
        ...

    def cancel_and_export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        """Asks for a terminal snapshot, after which the job is FAILED (cancelled), and exports it.

        If the terminal snapshot fails, the job is cancelled all the same, and what is exported is
        the snapshot before.

        Raises:
            JobStateError: it does not run; also as `export_snapshot`.
            ConfigurationError, TimeoutError: as `export_snapshot`.

        Example:
            >>> job.cancel_and_export_snapshot("final")          # doctest: +SKIP
        """
        ...

    def restart(self) -> None:
        """Asks for a terminal snapshot and a new execution that goes on from it; returns at once.

        The new execution is in the same process. A call that waits for the result goes on waiting.

        Raises:
            JobStateError: it does not run.
        """
        self.request_stop(StopKind.RESTART)

    def resume(self) -> None:
        """Goes on from the last snapshot after `suspend`; returns when the job is starting.

        Raises:
            JobStateError: it is not suspended, or this process does not have its pipeline; in that
                case use `Jet.submit`.

        Example:
            >>> job.resume()                                # doctest: +SKIP
        """
        ...
