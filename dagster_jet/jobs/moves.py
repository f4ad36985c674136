"""What may be asked of a job that another process runs, or nobody: a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from dagster_jet.errors import JobStateError
from dagster_jet.jobs.supervision import Intent
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus


class Move(str, Enum):
    """What can be asked of a job."""

    SUSPEND = "suspend"
    """Down, after a terminal snapshot if it runs, until it is resumed."""
    RESUME = "resume"
    """Wanted again: whoever supervises it starts it from its last snapshot."""
    RESTART = "restart"
    """A terminal snapshot, and a new execution at once."""
    SHUTDOWN = "shutdown"
    """A terminal snapshot; whoever supervises it goes on."""
    COMPLETE = "complete"
    """Its inputs end: all windows are closed."""
    CANCEL = "cancel"
    """Down, without a snapshot."""
    EXPORT = "export"
    """A snapshot is kept under a name; nothing else becomes of the job."""
    CANCEL_AND_EXPORT = "cancel_and_export"
    """Down, after a terminal snapshot, which is kept under a name."""


_LIVE = frozenset(
    {
        Move.SUSPEND,
        Move.RESTART,
        Move.SHUTDOWN,
        Move.COMPLETE,
        Move.CANCEL,
        Move.EXPORT,
        Move.CANCEL_AND_EXPORT,
    }
)
LEGAL: Mapping[JobStatus, frozenset[Move]] = {
    JobStatus.NOT_RUNNING: frozenset({Move.SUSPEND, Move.RESUME, Move.EXPORT}),
    JobStatus.STARTING: _LIVE,
    JobStatus.RUNNING: _LIVE,
    JobStatus.COMPLETING: _LIVE,
    JobStatus.SUSPENDED: frozenset({Move.RESUME, Move.EXPORT}),
    JobStatus.COMPLETED: frozenset({Move.EXPORT}),
    JobStatus.FAILED: frozenset({Move.EXPORT}),
}
"""Without a look at what is wanted of the job; see `check`."""
_CURES = {
    JobStatus.COMPLETED: "Its inputs are over. Give the pipeline another name, or go back with "
    "JobConfig(initial_snapshot=...).",
    JobStatus.FAILED: "Remove the cause, then launch or submit it: it goes on from its last "
    "snapshot.",
    JobStatus.SUSPENDED: "Resume it first.",
    JobStatus.NOT_RUNNING: "Start it first.",
}


def check(job: str, move: Move, status: JobStatus, failure: str | None, intent: Intent) -> None:
    """Refuse what makes no sense now.

    A living job can be resumed where it is about to go down, or would not be started again.

    Raises:
        JobStateError: with what the job is, and what to do.
    """
    if move in LEGAL[status]:
        return
    if move is Move.RESUME and status.is_live and intent is not Intent.ALWAYS_ON:
        return
    raise refusal(job, move, status, failure)


def refusal(job: str, move: Move, status: JobStatus, failure: str | None) -> JobStateError:
    """What is said to whoever asks for what makes no sense now: what the job is, what to do."""
    why = f" ({failure})" if failure else ""
    return JobStateError(
        f"cannot {move.value}: the job is {status.value}{why}.",
        job=job,
        cure=_CURES.get(status, "Nothing has to be done."),
    )


def refuse_without_name(job: str, kind: StopKind) -> None:
    """Raises `JobStateError` for a stop that has to say under which name it exports."""
    if kind is StopKind.CANCEL_AND_EXPORT:
        raise JobStateError(
            "a stop alone does not say under which name the snapshot is to be exported.",
            job=job,
            cure="Use cancel_and_export_snapshot(name).",
        )
