"""The contract of job handles, for any process that runs the job, and a job's result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from dagster_jet.core.html_table import html_table
from dagster_jet.core.measures import Distribution
from dagster_jet.exports.export import Export
from dagster_jet.jobs.stored_job import StoredJob
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus


@dataclass(frozen=True)
class JobResult:
    """Result of a job. Rows are totals since the job began, not of this process alone."""

    status: JobStatus
    rows_in: int
    """Rows read from sources."""
    rows_out: int
    """Rows written to sinks."""
    snapshot_id: int | None
    """The newest snapshot; None if there is none."""
    epochs: int
    """Epochs of the job in this process; 0 for a job that runs in another process."""
    restarts: int = 0
    """Executions that began because an earlier one ended unrequested."""
    rows_rejected: int = 0
    """Dead letters, of sources and of stages."""
    ignored_input: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Waiting input, which is not read, if a COMPLETED job was submitted again."""
    counted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By stage, the counters of its functions; see `job_context`."""
    gauges: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By stage, the gauges of its functions."""
    histograms: Mapping[str, Mapping[str, Distribution]] = field(default_factory=dict)
    """By stage, the histograms of its functions."""

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook."""
        facts = {one.name: getattr(self, one.name) for one in fields(self)}
        facts["status"] = self.status.value
        rows = [(name.replace("_", " "), fact) for name, fact in facts.items() if fact != {}]
        return html_table("Result of a job", (), rows)


class Job(StoredJob, ABC):
    """A handle to read and control a job.

    There are two kinds with one contract: a pipeline that this process runs (`Jet.submit`), and a
    pipeline that another process runs, or none (`Jet.job`). Both read the store alike. A kind
    refuses a control that it does not have with `JobStateError`.

    Times are in seconds; None waits for ever. A `TimeoutError` ends the waiting, not the request.

    Example:
        >>> job = jet.submit(pipeline)                  # doctest: +SKIP
        >>> job.suspend().status                        # doctest: +SKIP
        <JobStatus.SUSPENDED: 'SUSPENDED'>
    """

    @abstractmethod
    def result(self, timeout: float | None = None) -> JobResult:
        """Waits until the job does not run any more, and returns its result.

        Raises:
            TimeoutError: the job still runs.
            JetError: the error that ended the job, unless the end was requested. For a job of
                another process it is a `JobFailedError` with the text of the job's record.

        Example:
            >>> job.result(timeout=60).rows_out             # doctest: +SKIP
        """

    @abstractmethod
    def request_stop(self, kind: StopKind) -> None:
        """Requests a stop and returns at once. `StopKind` describes each kind.

        A repeated request is no error. CANCEL overrides every earlier request.

        Raises:
            JobStateError: the job does not run, or cannot stop in this way.

        Example:
            >>> job.request_stop(StopKind.CANCEL)           # doctest: +SKIP
        """

    def suspend(self, timeout: float | None = 60) -> JobResult:
        """Requests a terminal snapshot, after which the job is SUSPENDED, and waits for it.

        Returns:
            The result. Check its status: the job may have ended by itself before.

        Raises:
            JobStateError: the job does not run.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.SUSPEND)
        return self.result(timeout)

    def cancel(self, timeout: float | None = 60) -> JobResult:
        """Requests an end without a snapshot, after which the job is FAILED, and waits for it.

        Committed output stays. A job that is submitted again continues from its last snapshot.

        Raises:
            JobStateError: the job does not run.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.CANCEL)
        return self.result(timeout)

    def complete(self, timeout: float | None = None) -> JobResult:
        """Requests that the job reads all present input, then ends as COMPLETED; waits for it.

        The inputs end then: every window is closed and committed.

        Raises:
            JobStateError: the job does not run.
            TimeoutError, JetError: as `result`.
        """
        self.request_stop(StopKind.COMPLETE)
        return self.result(timeout)

    @abstractmethod
    def export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        """Exports a snapshot under a name and waits until it is done; it is kept until deleted.

        A running job exports the first snapshot that has everything read by then, and continues
        meanwhile. For a job that is down the last committed snapshot is exported. The export is
        independent of retention, garbage collection and the job itself:
        `jet.run(..., initial_snapshot=name)` starts this job or another one from it.

        Args:
            name: unique in the namespace: letters, digits, dots, dashes and underscores.
            timeout: limits the waiting.

        Raises:
            ConfigurationError: the name is not valid.
            JobStateError: an export has this name; or the job has no committed snapshot.
            TimeoutError: it is not done yet. The request stays, also after a crash.

        Example:
            >>> job.export_snapshot("before-upgrade").epoch_id   # doctest: +SKIP
        """

    @abstractmethod
    def cancel_and_export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        """Requests a terminal snapshot, after which the job is FAILED (cancelled), and exports it.

        If the terminal snapshot fails, the job is cancelled and the previous one exported.

        Raises:
            JobStateError: the job does not run; also as `export_snapshot`.
            ConfigurationError, TimeoutError: as `export_snapshot`.

        Example:
            >>> job.cancel_and_export_snapshot("final")          # doctest: +SKIP
        """

    def restart(self) -> None:
        """Requests a terminal snapshot and a new execution that continues from it; returns at once.

        The new execution is in the same process. Calls that wait for the result keep waiting.

        Raises:
            JobStateError: the job does not run.
        """
        self.request_stop(StopKind.RESTART)

    @abstractmethod
    def resume(self) -> None:
        """Continues from the last snapshot, for example after `suspend`.

        If this process has the pipeline, the job must be SUSPENDED, and the call returns when it is
        starting. Else its supervisor or schedule is asked to start it, and the call returns at
        once. Such a job may also be NOT_RUNNING, or still run if it would not be started again.

        Raises:
            JobStateError: the job cannot be resumed from its status; or this process does not have
                its pipeline, and no supervisor has ever started it: use `Jet.submit`.

        Example:
            >>> job.resume()                                # doctest: +SKIP
        """
