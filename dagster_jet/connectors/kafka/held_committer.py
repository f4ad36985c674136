"""Phase 2 of held transactions: commits each by its producer id and epoch.

The coordinator's answer nearly always decides. If it refuses, the transaction was aborted (by its
time-out, or because another attempt of its task used the id), or it is committed already and the id
in use for a later epoch; its marker shows which. Aborted rows are produced again from the staged
segment, as in a roll-forward sink, with a marker of its kind.

A marker's visibility is known once all earlier transactions in its partition have ended. So an
epoch's transactions are all committed first, and then the markers of refused ones are read. A
sink's markers share a partition, so only older transactions, already decided, can delay this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

from dagster_jet.connectors.held import IDS_PER_WRITER, held_ids
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.held_rows import HeldTransaction, part_of
from dagster_jet.connectors.kafka.marker_topic import is_there
from dagster_jet.connectors.kafka.markers import Marker, Owner, is_visible, read_markers
from dagster_jet.connectors.kafka.newest_execution import NewestExecution
from dagster_jet.connectors.kafka.producing import EpochProducer
from dagster_jet.connectors.kafka.transaction_coordinator import TransactionCoordinator
from dagster_jet.connectors.staged_rows import staged_rows
from dagster_jet.connectors.staging import Segment, StoreArea, remove_orphans
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.errors import SinkError
from dagster_jet.snapshot.manifest import Artifact, by_epoch
from dagster_jet.system.failpoint import fail_point


@dataclass
class HeldKafkaCommitter(Committer):
    """Committer of one execution."""

    cluster: Cluster
    topic: str
    marker_topic: str
    """For rows rolled forward; held transactions have their own topic."""
    held_marker_topic: str
    area: StoreArea
    sink: Owner
    writers: int
    """Number of writers of the sink in the current pipeline."""
    coordinator: TransactionCoordinator
    topic_id: str = ""
    batch_bytes: int | None = None
    _rolling: dict[str, EpochProducer] = field(default_factory=dict)
    """Producers that produce aborted rows again, by part of the sink."""

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """Commits the transactions, oldest epoch first.

        Rows that had to be produced again come after those of later epochs in open transactions. So
        these are aborted and produced again, too, and a running epoch is cancelled by a restart.
        Otherwise the older value of a key would be the last.

        After a crash between two commits of an epoch only the first is visible; the next start
        repeats both.

        Raises:
            SinkError: everything is committed, and the job must restart to keep the order.
        """
        again: list[Artifact] = []
        for one_epoch in by_epoch(artifacts).values():
            held = {_held(artifact): artifact for artifact in one_epoch}
            is_overtaken = bool(again)
            ended = [one for one in held if self._end(one, commit=not is_overtaken)]
            done = [] if is_overtaken else ended
            for one in done:
                self._end(one)  # answered once its rows are visible
            for one in [one for one in held if one not in done]:
                if one in ended or not self._is_committed(one, held[one]):
                    self._roll_forward(one, held[one], context)
                    again.append(held[one])
            for one, artifact in held.items():
                self._segment(one, artifact).remove()
        if again and not context.recovering:
            raise SinkError(
                f"epoch {again[0].epoch_id}: the cluster had aborted a transaction, whose messages "
                "were produced again, behind those of the next epoch.",
                job=context.job,
                stage=context.sink,
                cure="The job restarts from its last snapshot, so that they keep their order. Let "
                'transactions live longer: options={"transaction.timeout.ms": ...}.',
            )

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        return all(self._has_committed(artifact) for artifact in artifacts)

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        """Aborts open transactions of older executions, for each id that a writer ever used."""
        NewestExecution(self.area).note(context.execution_id)
        found = 0
        writers = max(self.writers, context.held_writers)
        for held in held_ids(context.job, context.sink, writers):
            found += self._abort(part_of(held), context.execution_id, keep)
        return found + remove_orphans(self.area, context.execution_id, keep)

    def close(self) -> None:
        self.coordinator.close()
        while self._rolling:
            self._rolling.popitem()[1].give_up()

    # --- outcome of one transaction ---------------------------------------------------------------

    def _end(self, held: HeldTransaction, *, commit: bool = True) -> bool:
        fail_point("kafka.held.commit.before")
        is_ended = self.coordinator.end(
            self._owner(held.part).transactional_id,
            held.producer_id,
            held.producer_epoch,
            commit=commit,
        )
        fail_point("kafka.held.commit.after")
        return is_ended

    def _is_committed(self, held: HeldTransaction, artifact: Artifact) -> bool:
        """True if its marker is visible although the coordinator refused to commit it."""
        marker = Marker(artifact.epoch_id, held.execution_id, held.execution_id)
        with self._producer(held.part).errors_named():
            return is_visible(
                self.cluster,
                self.held_marker_topic,
                self._owner(held.part),
                held.timeline,
                marker,
                held.marker_at,
            )

    def _roll_forward(
        self, held: HeldTransaction, artifact: Artifact, context: CommitContext
    ) -> None:
        producer = self._producer(_rolled(held))
        with producer.errors_named():
            producer.commit(
                Marker(artifact.epoch_id, held.execution_id, context.execution_id, held.topic_id),
                context,
                held.timeline,
                partial(Marker.reaches, execution_id=held.execution_id, epoch_id=artifact.epoch_id),
                partial(staged_rows, [self._segment(held, artifact)], context),
            )

    def _has_committed(self, artifact: Artifact) -> bool:
        held = _held(artifact)
        if self.topic_id and held.topic_id not in ("", self.topic_id):
            return False  # the topic was created again; its markers remain
        found = self.coordinator.describe(self._owner(held.part).transactional_id)
        ids = (held.producer_id, held.producer_epoch)
        if found is not None and (found.producer_id, found.producer_epoch) == ids:
            return found.state in ("PrepareCommit", "CompleteCommit")
        producer = self._producer(_rolled(held))
        with producer.errors_named():
            has_marks = is_there(self.cluster, self.held_marker_topic)
            if has_marks and self._is_committed(held, artifact):
                return True
            if not is_there(self.cluster, self.marker_topic):
                return False
            found_by_line = read_markers(self.cluster, self.marker_topic, producer.owner)
        rolled = found_by_line.get(held.timeline)
        return rolled is not None and rolled.reaches(held.execution_id, artifact.epoch_id)

    def _abort(self, part: str, before_execution: int, keep: Collection[str]) -> bool:
        """Aborts an open transaction, unless it is in a snapshot or of a newer execution."""
        transactional_id = self._owner(part).transactional_id
        found = self.coordinator.describe(transactional_id)
        if found is None or found.state != "Ongoing":
            return False
        ids = (found.producer_id, found.producer_epoch)
        kept = [held for token in keep if (held := HeldTransaction.of(token)) is not None]
        if any((one.producer_id, one.producer_epoch) == ids and one.part == part for one in kept):
            return False
        # Its owner has staged its first rows before. This execution may be older, and paused.
        if any(_is_newer(name, part, before_execution) for name in self.area.names()):
            return False
        return self.coordinator.end(transactional_id, *ids, commit=False)

    def _producer(self, part: str) -> EpochProducer:
        if part not in self._rolling:
            self._rolling[part] = EpochProducer(
                self.cluster, self.topic, self.marker_topic, self._owner(part), self.batch_bytes
            )
        return self._rolling[part]

    def _owner(self, part: str) -> Owner:
        return replace(self.sink, part=part)

    def _segment(self, held: HeldTransaction, artifact: Artifact) -> Segment:
        return Segment(self.area, replace(artifact, token=held.staged))


def _held(artifact: Artifact) -> HeldTransaction:
    held = HeldTransaction.of(artifact.token)
    assert held is not None, "the sink of these artifacts is of another kind"
    return held


def _rolled(held: HeldTransaction) -> str:
    """Part of the sink whose id and markers are used to produce aborted rows again."""
    return f"{held.part}/rolled"


def _is_newer(staged: str, part: str, execution_id: int) -> bool:
    """True if a staged chunk is of this part of the sink, and of this execution or a newer one."""
    execution, epoch, writer, _ = staged.split("-", 3)
    is_part = f"{writer}-{int(epoch) % IDS_PER_WRITER}" == part
    return is_part and int(execution) >= execution_id
