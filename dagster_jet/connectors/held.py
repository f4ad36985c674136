"""Held transactions: a writer prepares one in the outside system, and phase 2 commits it by its id.

For systems that can do both from different connections, and can be asked afterwards what became of
a transaction. Where they cannot, rows are staged (`connectors.staging`).

A sink has a fixed number of writers, and each writer two ids in turn: one may still wait for its
commit while the next epoch writes under the other. So ids are known without being listed, and what
a crash has left open is found by asking for each of them, also those of executions that had more
writers: the job's record says how many there ever were.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Protocol

from dagster_jet.connectors.contract import CommitContext, Committer, TransactionId
from dagster_jet.errors import ArtifactLostError
from dagster_jet.snapshot.manifest import Artifact, by_epoch

IDS_PER_WRITER = 2


def held_id(transaction: TransactionId) -> str:
    """Returns the id under which a writer prepares: `job/sink/shard-number`, with number 0 or 1.

    It is the same after a crash: a writer first rolls back what it finds under its id, of an older
    execution or of another attempt of its task.

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
    """What has become of a prepared transaction that was to be committed."""

    COMMITTED = "committed"
    """It is committed, by this call or by an earlier one. The outside system has to know that: by a
    marker of the epoch in the transaction, or by its own log."""
    GONE = "gone"
    """It was rolled back, by a time-out or by a person."""


class HeldTransactions(Protocol):
    """The outside system, as phase 2 needs it.

    Every call may be made again, also by another process. Errors of its client library are raised
    as `JetError`s, or classified by a `HeldCommitter` of your own with a method `reaction`
    (`ClassifiesErrors`).
    """

    def commit(self, held_id: str, artifact: Artifact) -> Fate:
        """Commits what was prepared under the id for this artifact, and nothing else: by now the id
        may be in use for a later epoch.

        Raises:
            SinkUnavailableError: not now; the whole commit is made again.
        """
        ...

    def roll_back(self, held_id: str, *, before_execution: int) -> bool:
        """Rolls back what executions before this one left under the id, prepared or not.

        It leaves alone what this execution or a newer one has opened: the caller may have been
        paused meanwhile.

        Returns:
            Whether there was anything.
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
    """How many writers the sink has in the pipeline as it is now."""
    transactions: HeldTransactions

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """Commits the transactions one after the other, oldest epoch first.

        A crash between two of them leaves the first visible and the second not: the next start
        calls it again, for both.

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
                    cure="Let transactions live longer than a restart takes; let the job go on "
                    "without these rows with JobConfig(accept_loss=True), or stage rows instead "
                    '(transactions="roll-forward").',
                )
            context.report_lost(artifact)

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        """Rolls back what older executions left open, under each id that a writer ever had.

        It is called after the commits. What is open then is in no decided snapshot, so `keep` is
        not looked at.
        """
        writers = max(self.writers, context.held_writers)
        ids = held_ids(self.job, self.sink, writers)
        before = context.execution_id
        return sum(self.transactions.roll_back(one, before_execution=before) for one in ids)

    def close(self) -> None:
        self.transactions.close()
