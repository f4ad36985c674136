"""Held transactions: a writer prepares one in the outside system, and phase 2 commits it by its id.

For systems that can do both from different connections, and can report the outcome of a transaction
afterwards. For other systems rows are staged (`connectors.staging`).

A sink has a fixed number of writers. Each writer alternates between two ids: one may still wait for
its commit while the next epoch writes under the other. So ids are known without listing them, and
transactions left open by a crash are found by asking for every id, including those of executions
with more writers: the job's record keeps the highest number of writers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Protocol

from dagster_jet.contract import CommitContext, Committer, TransactionId
from dagster_jet.errors import ArtifactLostError
from dagster_jet.snapshot.manifest import Artifact, by_epoch

IDS_PER_WRITER = 2
TRANSACTIONS = ("roll-forward", "held")
"""Values of the option `transactions` of sinks that have both recipes."""


def held_id(transaction: TransactionId) -> str:
    """Returns the id under which a writer prepares: `job/sink/shard-number`, with number 0 or 1.

    It is the same after a crash: a writer first rolls back any transaction under its id, left by an
    older execution or another attempt of its task.

    Example:
        >>> held_id(TransactionId("j", "out", 1, 5, epoch_id=7, shard=3, attempt="a0"))
        'j/out/3-1'
    """
    number = transaction.epoch_id % IDS_PER_WRITER
    return _id(transaction.job, transaction.sink, transaction.shard, number)


def held_ids(job: str, sink: str, writers: int) -> list[str]:
    """Returns all ids of a sink with this number of writers."""
    return [_id(job, sink, w, number) for w in range(writers) for number in range(IDS_PER_WRITER)]


def _id(job: str, sink: str, writer: int, number: int) -> str:
    return f"{job}/{sink}/{writer}-{number}"


class Fate(Enum):
    """Outcome of a commit of a prepared transaction."""

    COMMITTED = "committed"
    """Committed, by this call or an earlier one. The outside system must know this: by the epoch's
    marker in the transaction, or by its own log."""
    GONE = "gone"
    """Rolled back, by a time-out or by a person."""


class HeldTransactions(Protocol):
    """Interface of the outside system for phase 2.

    Every call may be repeated, also by another process. Errors of the client library are raised as
    `JetError`s, or classified by the method `reaction` of a subclass of `HeldCommitter`.
    """

    def commit(self, held_id: str, artifact: Artifact) -> Fate:
        """Commits the transaction prepared under the id for this artifact, and no other: a later
        epoch may use the id by now.

        Raises:
            SinkUnavailableError: temporarily unavailable; the whole commit is repeated.
        """
        ...

    def roll_back(self, held_id: str, *, before_execution: int) -> bool:
        """Rolls back the transaction under the id, prepared or not, of executions before this one.

        It keeps transactions of this execution or a newer one: the caller may have been paused
        meanwhile.

        Returns:
            Whether a transaction was rolled back.
        """
        ...

    def close(self) -> None:
        """Closes connections; the last call."""
        ...


@dataclass
class HeldCommitter(Committer):
    """Phase 2 of a sink with held transactions. The token of an artifact is its held id."""

    job: str
    sink: str
    writers: int
    """Number of writers of the sink in the current pipeline."""
    transactions: HeldTransactions

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """Commits the transactions sequentially, oldest epoch first.

        After a crash between two commits only the first is visible: the next start repeats the
        call for both.

        Raises:
            ArtifactLostError: a transaction was rolled back before its commit. With
                `CommitContext.accept_loss` it is reported as lost instead.
        """
        for artifact in chain.from_iterable(by_epoch(artifacts).values()):
            if self.transactions.commit(artifact.token, artifact) is Fate.COMMITTED:
                continue
            if not context.accept_loss:
                raise ArtifactLostError(
                    f"epoch {artifact.epoch_id}: the transaction with {artifact.rows} rows was "
                    "rolled back before its commit.",
                    job=self.job,
                    stage=self.sink,
                    position=artifact.token,
                    cure="Raise the transaction time-out above the duration of a restart, or "
                    'stage rows instead (transactions="roll-forward"). To continue without '
                    "these rows, use the start option accept_loss=True.",
                )
            context.report_lost(artifact)

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        """Rolls back open transactions of older executions, under every id that a writer ever had.

        Called after the commits: transactions that are still open are in no decided snapshot, so
        `keep` is ignored.
        """
        writers = max(self.writers, context.held_writers)
        ids = held_ids(self.job, self.sink, writers)
        before = context.execution_id
        return sum(self.transactions.roll_back(one, before_execution=before) for one in ids)

    def close(self) -> None:
        self.transactions.close()
