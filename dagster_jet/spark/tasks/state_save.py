"""Writes one shard's state into the store at a barrier: the changes, and some full partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa

from dagster_jet.operators.operator import Operator, merge_whole
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.storage.chunks import (
    BATCH_BYTES,
    ChunkSetName,
    ChunkSetWriter,
    filter_partitions,
    needs_base,
    superseded,
    turn,
)
from dagster_jet.spark.tasks.barrier import Barrier, owned_partitions
from dagster_jet.state.runs import RunFolder


@dataclass(frozen=True)
class StateSave:
    """Called once, on any thread. The runs' files may have been deleted by then: all tables read
    are open. A crash inside leaves chunks without references."""

    barrier: Barrier
    vertex: str
    operator: Operator
    shard: int
    shard_count: int
    attempt: str
    chain: tuple[ChunkSet, ...]
    runs: RunFolder
    new: Sequence[pa.Table]
    """State that no snapshot has."""
    old: Sequence[pa.Table]
    expired_until_ms: int | None

    @property
    def is_little(self) -> bool:
        """Whether there are changes and they fit into one batch, cheap to hold for another
        epoch."""
        nbytes = sum(table.nbytes for table in self.new)
        return self._changed > 0 and not self._is_base and nbytes <= BATCH_BYTES

    @cached_property
    def _changed(self) -> int:
        return sum(table.num_rows for table in self.new)

    @cached_property
    def _is_base(self) -> bool:
        return needs_base(self.chain, self._changed + sum(table.num_rows for table in self.old))

    def __call__(self) -> tuple[ChunkSet | None, int]:
        """Writes the changes since the last snapshot, and in full the partitions in turn.

        Returns:
            The chunk set, None if nothing had changed; the number of oldest sets it supersedes.

        Raises:
            StoreError: a member did not accept it.
        """
        if self._changed == 0 and self.chain:
            return None, 0
        assert self.barrier.snapshot_id is not None and self.barrier.store is not None
        owned = owned_partitions(self.shard, self.shard_count, self.barrier.partition_count)
        sequence = self.chain[-1].sequence + 1 if self.chain else 0
        full = [p for p in owned if self._is_base or turn(p, sequence)]
        name = ChunkSetName(
            self.vertex,
            self.barrier.snapshot_id,
            self.barrier.execution_id,
            self.shard,
            self.attempt,
        )
        chunks = self.barrier.store.map(self.barrier.chunk_map_name())
        writer = ChunkSetWriter(chunks, name, self.barrier.partition_count)
        merge, expired = partial(merge_whole, self.operator), self.expired_until_ms
        new = self.new or [self.operator.state_schema.empty_table()]
        if self._is_base:
            for part in self.runs.merged([*new, *self.old], merge, expired, by_partition=True):
                writer.add(part)
        else:
            # Only partitions in turn are merged with older rows.
            for part in self.runs.merged(new, pa.concat_tables, expired, by_partition=True):
                writer.add(part, without=full)
            in_turn = [filter_partitions(table, full) for table in (*new, *self.old)]
            for part in self.runs.merged(in_turn, merge, expired, by_partition=True):
                writer.add(part)
        chunk_set = writer.finish(full, sequence=sequence, is_base=self._is_base)
        return chunk_set, superseded(self.chain, sequence)
