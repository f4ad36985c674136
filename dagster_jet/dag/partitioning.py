"""Which instance owns a key: one rule for edges and for restored state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_jet.dag.items import PartitionKey

Partitioner = Callable[[object, int], int]
"""(key, partition count) -> partition. The same in every process and at every start."""


@dataclass(frozen=True)
class Partitioning:
    """Keys to partitions, partitions to instances."""

    partitioner: Partitioner
    partition_count: int

    def partition_of(self, key: object) -> int:
        """The key's partition; a `PartitionKey` names it."""
        if isinstance(key, PartitionKey):
            return key.partition
        return self.partitioner(key, self.partition_count)

    def owner_of(self, key: object, parallelism: int) -> int:
        """The index of the instance that owns the key, of `parallelism` instances."""
        return self.partition_of(key) % parallelism
