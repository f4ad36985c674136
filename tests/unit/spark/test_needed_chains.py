"""A restore with another number of shards opens only the chains that it needs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_jet.dag import Processor
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.operator import Operator
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.spark.restore import needed_chains
from dagster_jet.spark.tasks.barrier import owned_partitions

PARTITIONS = 271
ROWS = pa.schema([("k", pa.string())])
FIRST_OF_KEY = Deduplicate(("k",), ROWS, 1_000)


@pytest.mark.parametrize("operator", [FIRST_OF_KEY, InEventOrder(FIRST_OF_KEY)], ids=type)
@pytest.mark.parametrize(("before", "now"), [(271, 200), (200, 271), (8, 12), (12, 8), (4, 4)])
def test_every_partition_is_found_and_few_chains_are_opened(
    operator: Operator, before: int, now: int
) -> None:
    """271 shards became 200: each new one opened all 271 chains."""
    old = tuple((ChunkSet(f"s/{shard}", 0, 1, 1, 1),) for shard in range(before))
    opened = 0
    for shard in range(now):
        needed = needed_chains(old, shard, now, PARTITIONS, operator)
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


@pytest.mark.parametrize("wrapped", [False, True])
def test_instances_that_share_entries_open_every_chain(wrapped: bool) -> None:
    keyed: Operator = SparkProcessor("s", Processor, ROWS, ROWS, ("k",), False, PARTITIONS)
    old = tuple((ChunkSet(f"s/{shard}", 0, 1, 1, 1),) for shard in range(8))
    operator = InEventOrder(keyed) if wrapped else keyed
    assert needed_chains(old, 0, 12, PARTITIONS, operator) == old
    assert needed_chains(old, 0, 8, PARTITIONS, operator) == old[:1]
