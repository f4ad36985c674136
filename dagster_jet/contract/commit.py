"""Phase 2 of a sink: the driver makes decided artifacts visible."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_jet.contract.part import ClassifiesErrors

if TYPE_CHECKING:
    from dagster_jet.contract.refused import RefusedRows
    from dagster_jet.snapshot.manifest import Artifact

Piece = Callable[[], Any]
"""Independent part of a commit: may run in any process, and twice. It and its result are
picklable."""


def carry_out_here(pieces: Sequence[Piece]) -> list[Any]:
    """Runs the pieces sequentially in this process and returns their results."""
    return [piece() for piece in pieces]


def report_to_nobody(artifact: Artifact) -> None:
    """Ignores a lost artifact."""


@dataclass(frozen=True)
class CommitContext:
    """Identifies the committing execution. The key of a marker is (job, sink, timeline, epoch)."""

    job: str
    sink: str
    timeline: int
    execution_id: int
    recovering: bool
    accept_loss: bool = False
    owns_job: bool = False
    """For `Committer.has_committed`: True if a starting execution asks; the call may then fence
    older executions first. False: the call fences nobody."""
    repeatable: bool = False
    """True below exactly-once: a later execution may reuse the epoch's id for other rows. A marker
    then counts only for its `execution_id`."""
    report_lost: Callable[[Artifact], None] = field(default=report_to_nobody, compare=False)
    """With `accept_loss`: called with each artifact that is left out because its rows are lost."""
    refused: RefusedRows | None = field(default=None, compare=False, repr=False)
    """For committers that can leave rows out of an epoch."""
    held_writers: int = 0
    """Highest number of writers in any execution of a sink with held transactions. Each may have
    left open transactions."""
    retained_epoch_id: int = 0
    """Epoch of the oldest snapshot that a start can go back to. Such a start asks for the newest
    output up to that epoch, so its marker and all newer ones must stay. 0: unknown, keep all."""
    in_tasks: Callable[[Sequence[Piece]], list[Any]] = field(
        default=carry_out_here, compare=False, repr=False
    )
    """Runs pieces of a commit in parallel Spark tasks, so that rows do not pass the driver, and
    returns their results in order. Raises the first `JetError` of a piece once all have ended. It
    costs a Spark job and waits for tasks of a running epoch: for a few small values the driver is
    faster."""


class Committer(ClassifiesErrors):
    """The driver's side of a sink in one execution: phase 2.

    There is one call at a time, on any thread; other sinks commit concurrently.
    """

    _TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = (("together_with", "commit_together"),)

    @abstractmethod
    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """Makes the artifacts visible. Idempotent.

        Artifacts are ordered by epoch, then by shard. A sink that keeps the order of rows keeps
        that order.

        Raises:
            ArtifactLostError: neither the artifact nor a marker of its commit exists.
            SinkUnavailableError: temporarily unavailable (its reaction is RETRY): the call is
                repeated with growing pauses until it succeeds or the execution ends.
            FencedError: a newer owner has fenced this one.
            JetError: its reaction says whether the job fails, or restarts and then commits. Other
                errors are classified by `reaction`; unclassified ones restart the job.
        """

    @abstractmethod
    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        """Removes orphans of executions *older than ours*, except the tokens in `keep`.

        Returns:
            The number of removed orphans.
        """

    def together_with(self) -> Hashable:
        """Returns the place that can commit several sinks in one step, so that a reader sees all of
        them or none. Committers of a job whose places are equal are committed by
        `commit_together` of one of them; it calls methods of the others meanwhile. None: `commit`
        is called. Called before each commit; it connects to nothing.
        """
        return None

    def commit_together(self, parts: Sequence[CommitPart]) -> bool:
        """Makes the artifacts of several sinks visible in one step. Idempotent, and errors are as
        of `commit`. A crash before the step leaves all of them invisible.

        Args:
            parts: two or more, of which one is this committer's. Some may be committed already.

        Returns:
            True: all are committed. False: the place has no such step, so `commit` is called for
            each.
        """
        return False

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool | None:
        """Returns whether all of these artifacts are committed, by the outside system's markers.

        `Job.ledger` asks it, and every start, so that a job does not continue on a place that came
        back empty or older (`snapshot.newest_output`). The artifacts may be some of their epoch's,
        and readers may have consumed or moved the output since. The call changes nothing and fences
        nobody (but see `CommitContext.owns_job`), also while an execution commits. If the markers
        are lost, it returns False. None: the place keeps no markers, and the job's record counts.

        Raises:
            JetError: the outside system is unavailable, or another job commits there.
        """
        return None

    def output_facts(self) -> Mapping[str, Any]:
        """Returns facts about the last `commit`, or about a `has_committed` that was true: small
        JSON, such as the version of a table. Called once that call has returned. For people, and
        for the epochs table, which has the versions of lake tables (`connectors.lake.cut`)."""
        return {}

    def give_up_place(self, context: CommitContext) -> bool:
        """Removes the record of the owning sink from the place, for a job that is deleted. Output
        stays, also its list of epochs if readers use it. Idempotent.

        Returns:
            True if the place is free now, or belongs to another sink. False: its marks stay.

        Raises:
            JetError: temporarily unavailable.
        """
        return False

    def remove_output(self, context: CommitContext) -> bool:
        """Removes all rows that the job has committed to the place, for a computation that replaces
        them. Idempotent: after a crash inside, the next call removes the rest.

        Returns:
            True if the place has no rows of the job now. False: the connector cannot tell whose
            rows are there; then it leaves this method out.

        Raises:
            JetError: temporarily unavailable.
        """
        return False

    def close(self) -> None:
        """Closes connections. Always the last call, also if the execution fails."""


@dataclass(frozen=True)
class CommitPart:
    """One sink's part of a commit: the arguments of `Committer.commit`."""

    committer: Committer
    artifacts: Collection[Artifact]
    context: CommitContext
