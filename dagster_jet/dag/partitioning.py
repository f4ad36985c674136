"""Assignment of keys to instances: one rule for edges and for restored state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_jet.dag.items import PartitionKey

Partitioner = Callable[[object, int], int]
"""(key, partition count) -> partition. Equal in every process and at every start."""


@dataclass(frozen=True)
class Partitioning:
    """Maps keys to partitions, and partitions to instances."""

    partitioner: Partitioner
    partition_count: int

    def partition_of(self, key: object) -> int:
        """Return the key's partition; a `PartitionKey` contains it.

        Raises:
            ValueError: a `PartitionKey` has a partition that does not exist.
        """
        if isinstance(key, PartitionKey):
            if not 0 <= key.partition < self.partition_count:
                raise ValueError(f"there are partitions 0 to {self.partition_count - 1}")
            return key.partition
        return self.partitioner(key, self.partition_count)

    def owner_of(self, key: object, parallelism: int) -> int:
        """Return the index of the instance that owns the key, out of `parallelism` instances."""
        return self.partition_of(key) % parallelism
