"""Which chains a restore opens when the number of shards has changed."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.spark.restore import needed_chains
from dagster_jet.spark.tasks.barrier import owned_partitions

PARTITIONS = 271
OPERATOR: Any = object()


@pytest.mark.parametrize(("before", "now"), [(271, 200), (200, 271), (8, 12), (12, 8), (4, 4)])
def test_every_partition_is_found_and_few_chains_are_opened(before: int, now: int) -> None:
    """271 shards became 200: each new one opened all 271 chains."""
    old = tuple((ChunkSet(f"s/{shard}", 0, 1, 1, 1),) for shard in range(before))
    opened = 0
    for shard in range(now):
        needed = needed_chains(old, shard, now, PARTITIONS, OPERATOR)
        partitions = owned_partitions(shard, now, PARTITIONS)
        holders = {
            old[n]
            for n in range(before)
            for p in owned_partitions(n, before, PARTITIONS)
            if p in partitions
        }
        assert set(needed) == holders and len(needed) == len(holders)
        opened += len(needed)
    assert opened <= PARTITIONS
