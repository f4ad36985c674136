"""Held transactions: a writer prepares one in the outside system, and phase 2 commits it by its id.

For systems that can do both from different connections, and can be asked afterwards what became of
a transaction. Where they cannot, rows are staged (`connectors.staging`).

A sink has a fixed number of writers, and each writer two ids in turn: one may still wait for its
commit while the next epoch writes under the other. So ids are known without being listed, and what
a crash has left open is found by asking for every one of them, also those of executions that had
more writers: the job's record says how many there ever were.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from dagster_jet.connectors.contract import CommitContext, Committer, TransactionId
from dagster_jet.errors import ArtifactLostError
from dagster_jet.snapshot.manifest import Artifact

IDS_PER_WRITER = 2


def held_id(transaction: TransactionId) -> str:
    """The id under which a writer prepares. The same after a crash: whoever opens it again has to
    roll back first what it finds there, of an older execution or of another attempt."""
    number = transaction.epoch_id % IDS_PER_WRITER
    return _id(transaction.job, transaction.sink, transaction.shard, number)


def held_ids(job: str, sink: str, writers: int) -> list[str]:
    """All ids of so many writers."""
    return [_id(job, sink, w, number) for w in range(writers) for number in range(IDS_PER_WRITER)]


def _id(job: str, sink: str, writer: int, number: int) -> str:
    return f"{job}/{sink}/{writer}-{number}"


class Fate(Enum):
    """What has become of a prepared transaction that was to be committed."""

    COMMITTED = "committed"
    """Now, or by an earlier call: the outside system has to know that (a marker of its epoch in the
    transaction, or its own log)."""
    GONE = "gone"
    """Rolled back by a time-out, or by a person."""


class HeldTransactions(Protocol):
    """The outside system, as phase 2 needs it. Its errors are classified as a committer's are."""

    def commit(self, held_id: str, artifact: Artifact) -> Fate:
        """Commits what was prepared under the id for this artifact, and nothing else: the id may
        have been opened again since, for a later epoch."""
        ...

    def roll_back(self, held_id: str, *, before_execution: int) -> bool:
        """Rolls back what executions before this one have left under the id, prepared or not;
        nothing is no error. Returns whether there was anything.

        What a newer execution has opened has to stay: whoever calls may have slept meanwhile.
        """
        ...

    def close(self) -> None: ...


@dataclass
class HeldCommitter(Committer):
    """Phase 2 of a sink with held transactions. The token of an artifact is its held id."""

    job: str
    sink: str
    writers: int
    """Of the pipeline as it is now."""
    transactions: HeldTransactions

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        for artifact in sorted(artifacts, key=lambda one: (one.epoch_id, one.token)):
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
        """After the commits: what is still open is in no decided snapshot, whatever `keep` has."""
        writers = max(self.writers, context.held_writers)
        ids = held_ids(self.job, self.sink, writers)
        before = context.execution_id
        return sum(self.transactions.roll_back(one, before_execution=before) for one in ids)

    def close(self) -> None:
        self.transactions.close()
