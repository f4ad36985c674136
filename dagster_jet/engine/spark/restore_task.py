"""Restore inside a task: a shard's partitions from the store, as one local run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from dagster_jet.core.failpoint import fail_point
from dagster_jet.engine.spark.barrier import Barrier, ack_batch, new_attempt, owned_partitions
from dagster_jet.engine.state import RunFolder
from dagster_jet.processors.operator import Operator
from dagster_jet.processors.saved_schema import in_state_schema
from dagster_jet.snapshot.chunks import read_chain
from dagster_jet.snapshot.manifest import Ack, ChunkSet, Run, ShardState


@dataclass(frozen=True)
class RestoreItem:
    """One shard to bring back: which chains to read it from."""

    vertex: str
    shard: int
    operator: Operator
    chains: tuple[tuple[ChunkSet, ...], ...]
    old_shard_count: int
    new_shard_count: int
    reached_ms: int | None
    """The stage's watermark at the snapshot."""


@dataclass(frozen=True)
class RestoreTask:
    """Reads shards back from the store, by partition, at whatever parallelism."""

    barrier: Barrier
    items: tuple[RestoreItem, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = new_attempt()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield ack_batch(self._restore(self.items[number], attempt))

    def _restore(self, item: RestoreItem, attempt: str) -> Ack:
        fail_point("restore.before")
        assert self.barrier.store is not None
        count = self.barrier.partition_count
        wanted = frozenset(owned_partitions(item.shard, item.new_shard_count, count))
        store = self.barrier.store.map(self.barrier.chunk_map_name())
        tables = []
        for chain in item.chains:
            table = read_chain(
                store, chain, vertex=item.vertex, partition_count=count, wanted=wanted
            )
            if table is not None:
                tables.append(in_state_schema(table, item.operator, item.vertex))
        runs = RunFolder(
            folder=Path(self.barrier.work_dir) / item.vertex,
            prefix=f"restored-{item.shard}-{attempt}",
            vertex=item.vertex,
            time_column=item.operator.time_column,
        )
        saved: tuple[Run, ...] = ()
        if tables:
            alive = runs.alive(tables, item.operator.dead_until(item.reached_ms))
            saved = runs.write(item.operator.merge(alive))
        fail_point("restore.after")
        if item.old_shard_count == item.new_shard_count:
            return Ack(item.vertex, item.shard, attempt, saved=saved)
        # Another division: the next snapshot writes this shard's state anew, as a base.
        return Ack(item.vertex, item.shard, attempt, unsaved=saved)


def restored_state(ack: Ack, chain: tuple[ChunkSet, ...]) -> ShardState:
    """What the coordinator holds of a shard after `RestoreTask`."""
    return replace(ShardState(), saved=ack.saved, unsaved=ack.unsaved, chain=chain)
