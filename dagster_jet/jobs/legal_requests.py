"""Table of the legal requests to a job that is down or that another process runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from dagster_jet.errors import JobStateError
from dagster_jet.ownership.supervision import Intent
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus


class JobRequest(str, Enum):
    """A request to a job."""

    SUSPEND = "suspend"
    """The job is down until it is resumed; takes a terminal snapshot if it runs."""
    RESUME = "resume"
    """The job is wanted again: its supervisor starts it from its last snapshot."""
    RESTART = "restart"
    """A terminal snapshot, and a new execution at once."""
    SHUTDOWN = "shutdown"
    """A terminal snapshot; the supervisor may start the job again."""
    COMPLETE = "complete"
    """The inputs end: all windows are closed."""
    CANCEL = "cancel"
    """The job is down, without a snapshot."""
    EXPORT = "export"
    """A snapshot is exported under a name; the job is not changed."""
    CANCEL_AND_EXPORT = "cancel_and_export"
    """The job is down after a terminal snapshot, which is exported under a name."""


_LIVE = frozenset(
    {
        JobRequest.SUSPEND,
        JobRequest.RESTART,
        JobRequest.SHUTDOWN,
        JobRequest.COMPLETE,
        JobRequest.CANCEL,
        JobRequest.EXPORT,
        JobRequest.CANCEL_AND_EXPORT,
    }
)
LEGAL: Mapping[JobStatus, frozenset[JobRequest]] = {
    JobStatus.NOT_RUNNING: frozenset({JobRequest.SUSPEND, JobRequest.RESUME, JobRequest.EXPORT}),
    JobStatus.STARTING: _LIVE,
    JobStatus.RUNNING: _LIVE,
    JobStatus.COMPLETING: _LIVE,
    JobStatus.SUSPENDED: frozenset({JobRequest.RESUME, JobRequest.EXPORT}),
    JobStatus.COMPLETED: frozenset({JobRequest.EXPORT}),
    JobStatus.FAILED: frozenset({JobRequest.EXPORT}),
}
"""Legal requests by status, without regard to the job's intent; see `check`."""
_CURES = {
    JobStatus.COMPLETED: "Its inputs have ended. Give the pipeline another name, or start from an "
    "older snapshot with initial_snapshot=....",
    JobStatus.FAILED: "Remove the cause, then launch or submit the job: it continues from its "
    "last snapshot.",
    JobStatus.SUSPENDED: "Resume it first.",
    JobStatus.NOT_RUNNING: "Start it first.",
}


def check(
    job: str, request: JobRequest, status: JobStatus, failure: str | None, intent: Intent
) -> None:
    """Refuses illegal requests.

    A living job can be resumed if it is paused, and so about to go down. A job whose runs end by
    themselves can be resumed only from a pause or a suspension.

    Raises:
        JobStateError: names the job's status and a cure.
    """
    resumes = request is JobRequest.RESUME
    has_ended = status in (JobStatus.SUSPENDED, JobStatus.COMPLETED, JobStatus.FAILED)
    if resumes and intent is Intent.DRAINED and not has_ended:
        raise JobStateError(
            f"cannot resume: the job is {status.value} and not paused. Its runs end by themselves, "
            "and resuming starts none.",
            job=job,
            cure="Launch it, with until: stopped if it is to run without an end; or wait for its "
            "schedule.",
        )
    if request in LEGAL[status]:
        return
    if resumes and status.is_live and intent is Intent.PAUSED:
        return
    raise refusal(job, request, status, failure)


def refusal(job: str, request: JobRequest, status: JobStatus, failure: str | None) -> JobStateError:
    """The error for an illegal request: the job's status, and a cure."""
    why = f" ({failure})" if failure else ""
    return JobStateError(
        f"cannot {request.value}: the job is {status.value}{why}.",
        job=job,
        cure=_CURES.get(status, "No action is needed."),
    )


def refuse_without_name(job: str, kind: StopKind) -> None:
    """Raises `JobStateError` for a stop that needs the name of an export."""
    if kind is StopKind.CANCEL_AND_EXPORT:
        raise JobStateError(
            "a stop has no name under which the snapshot is exported.",
            job=job,
            cure="Use cancel_and_export_snapshot(name).",
        )
