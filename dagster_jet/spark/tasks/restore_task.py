"""Restore in a task: writes a shard's partitions from the store to local runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_jet.operators.operator import Operator, merge_whole
from dagster_jet.operators.saved_schema import in_state_schema
from dagster_jet.snapshot.manifest import Ack, ChunkSet, ShardState
from dagster_jet.snapshot.storage.chains import ChainReader
from dagster_jet.spark.tasks.barrier import Barrier, ack_batch, new_attempt, owned_partitions
from dagster_jet.spark.tasks.each_pickled import EachPickled
from dagster_jet.state.merging import ROWS_AT_ONCE
from dagster_jet.state.runs import RunFolder, sweep_dead_executions
from dagster_jet.system.failpoint import fail_point


@dataclass(frozen=True)
class RestoreItem:
    """One shard to restore, and the chains to read it from."""

    vertex: str
    shard: int
    operator: Operator
    chains: Sequence[tuple[ChunkSet, ...]]
    """Chains that may hold any of the shard's partitions."""
    old_shard_count: int
    new_shard_count: int
    expired_until_ms: int | None
    """Rows up to this time had expired at the snapshot. Chunks may still contain them."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickles each chain by itself: a task reads only the chains of its own shards."""
        return {**self.__dict__, "chains": EachPickled.of(self.chains)}


@dataclass(frozen=True)
class RestoreTask:
    """Reads shards from the store, by partition, at any parallelism."""

    barrier: Barrier
    items: Sequence[tuple[RestoreItem, ...]]
    """By shard."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = new_attempt()
        sweep_dead_executions(Path(self.barrier.work_dir))
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                for item in self.items[shard]:
                    yield ack_batch(self._restore(item, attempt))

    def _restore(self, item: RestoreItem, attempt: str) -> Ack:
        fail_point("restore.before")
        assert self.barrier.store is not None
        count = self.barrier.partition_count
        wanted = frozenset(owned_partitions(item.shard, item.new_shard_count, count))
        runs = RunFolder(
            folder=self.barrier.run_folder(item.vertex),
            prefix=f"restored-{item.shard}-{attempt}",
            vertex=item.vertex,
            time_column=item.operator.time_column,
        )
        portions = self._read(item, wanted)
        is_redivided = item.old_shard_count != item.new_shard_count
        if is_redivided and item.operator.shares_rows:
            others = frozenset(range(item.old_shard_count)) - wanted
            shared = [
                item.operator.shared_rows(merge_whole(item.operator, [table]), item.shard)
                for table in self._read(item, others)
            ]
            portions = chain(portions, shared)
        differs = is_redivided

        def parts() -> Iterator[pa.Table]:
            nonlocal differs
            for tables in _gathered(portions, ROWS_AT_ONCE):
                rows = merge_whole(item.operator, runs.live_rows(tables, item.expired_until_ms))
                before, by = rows, item.operator.time_column
                rows = item.operator.with_expiry(rows, item.expired_until_ms)
                # Another time to live: the chunks have the former times of expiry.
                differs |= rows is not before and not rows.column(by).equals(before.column(by))
                yield rows

        # One run: the first epoch would merge many into one, and so read and write all state again.
        saved = runs.write_parts(parts())
        fail_point("restore.after")
        if not differs:
            return Ack(item.vertex, item.shard, attempt, saved=saved)
        # After a change of parallelism, or of a time to live, the next snapshot writes this shard's
        # state as a new base.
        return Ack(item.vertex, item.shard, attempt, unsaved=saved)

    def _read(self, item: RestoreItem, partitions: frozenset[int]) -> Iterator[pa.Table]:
        """All rows of these partitions; each partition's rows are in one table."""
        assert self.barrier.store is not None
        store = self.barrier.store.map(self.barrier.chunk_map_name())
        for sets in item.chains:
            reader = ChainReader.open(
                store,
                sets,
                vertex=item.vertex,
                partition_count=self.barrier.partition_count,
                wanted=partitions,
            )
            for table in reader.tables(ROWS_AT_ONCE):
                yield in_state_schema(table, item.operator, item.vertex)


def _gathered(tables: Iterable[pa.Table], rows_at_once: int) -> Iterator[list[pa.Table]]:
    """Groups tables of different partitions into lists of about equal size."""
    gathered: list[pa.Table] = []
    for table in tables:
        if gathered and sum(t.num_rows for t in gathered) + table.num_rows > rows_at_once:
            yield gathered
            gathered = []
        gathered.append(table)
    if gathered:
        yield gathered


def restored_state(ack: Ack, chain: tuple[ChunkSet, ...]) -> ShardState:
    """The coordinator's state of a shard after `RestoreTask`."""
    return replace(ShardState(), saved=ack.saved, unsaved=ack.unsaved, chain=chain)
