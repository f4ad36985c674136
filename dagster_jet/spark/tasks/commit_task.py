"""Phase 2 in a task: processors are restored from a decided snapshot, and commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.operator import StepInput
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.snapshot.manifest import Ack, ShardState
from dagster_jet.spark.tasks.barrier import Barrier, ack_batch, new_attempt
from dagster_jet.state.runs import RunFolder, RunState
from dagster_jet.system.failpoint import fail_point


@dataclass(frozen=True)
class CommitItem:
    """A stage whose processors have prepared something, with the state of its shards."""

    vertex: str
    operator: SparkProcessor | InEventOrder
    shards: tuple[ShardState, ...]


@dataclass(frozen=True)
class CommitTask:
    """Lets one instance per stage and shard commit; reads, emits and saves nothing."""

    barrier: Barrier
    """Barrier of the epoch that the decided snapshot ended."""
    items: tuple[CommitItem, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = new_attempt()
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                for item in self.items:
                    self._commit(item, shard)
                    yield ack_batch(Ack(item.vertex, shard, attempt))

    def _commit(self, item: CommitItem, shard: int) -> None:
        """A crash inside leaves some transactions committed; the next start commits all again."""
        fail_point("stage.commit.before")
        folder = self.barrier.run_folder(item.vertex)
        runs = RunFolder(folder, "commit", item.vertex, item.operator.time_column)
        given = StepInput(
            arrived=(),
            before_ms=None,
            after_ms=None,
            version=self.barrier.epoch_id,
            shard=shard,
            shard_count=len(item.shards),
            fencing_token=self.barrier.fencing_token,
            guarantee=self.barrier.guarantee,
        )
        with self.barrier.job_context(item.vertex).entered():
            item.operator.commit(given, RunState(runs, item.operator, item.shards[shard], None))
        fail_point("stage.commit.after")
