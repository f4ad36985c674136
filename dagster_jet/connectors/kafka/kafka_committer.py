"""Phase 2 of a topic: produces an epoch's staged messages and its marker in one transaction.

The `transactional.id` depends only on the job and the sink (`producing.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.marker_topic import is_there
from dagster_jet.connectors.kafka.markers import Marker, Owner, read_markers
from dagster_jet.connectors.kafka.producing import EpochProducer
from dagster_jet.connectors.staged_rows import staged_rows
from dagster_jet.connectors.staging import StoreArea, remove_orphans, segments_by_epoch
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.snapshot.manifest import Artifact


@dataclass
class KafkaCommitter(Committer):
    """Committer of one execution."""

    cluster: Cluster
    topic: str
    marker_topic: str
    area: StoreArea
    owner: Owner
    topic_id: str = ""
    batch_bytes: int | None = None
    several: tuple[str, ...] = ()
    """See `EpochProducer`."""
    producer: EpochProducer = field(init=False)

    def __post_init__(self) -> None:
        self.producer = EpochProducer(
            self.cluster,
            self.topic,
            self.marker_topic,
            self.owner,
            self.batch_bytes,
            self.several,
        )

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        execution_id = context.execution_id if context.repeatable else 0
        with self.producer.errors_named():
            for epoch_id, segments in segments_by_epoch(self.area, artifacts):
                self.producer.commit(
                    Marker(epoch_id, execution_id, context.execution_id, self.topic_id),
                    context,
                    context.timeline,
                    partial(Marker.covers, epoch_id=epoch_id, execution_id=execution_id),
                    partial(staged_rows, segments, context),
                )
                for segment in segments:
                    segment.remove()

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        with self.producer.errors_named():
            if not is_there(self.cluster, self.marker_topic):
                return False
            if context.owns_job:  # ends a dead execution's open transaction without a wait
                markers = self.producer.open()
            else:
                markers = read_markers(self.cluster, self.marker_topic, self.owner)
        marker = markers.get(context.timeline)
        execution_id = context.execution_id if context.repeatable else 0
        # The markers remain if the topic was deleted and created again.
        return (marker is not None and marker.is_of(self.topic_id)) and all(
            marker.covers(artifact.epoch_id, execution_id) for artifact in artifacts
        )

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        return remove_orphans(self.area, context.execution_id, keep)

    def close(self) -> None:
        self.producer.give_up()
