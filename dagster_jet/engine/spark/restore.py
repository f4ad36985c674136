"""Restore as one Spark job: every shard reads its partitions from the store, in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dagster_jet.engine.spark.barrier import ACK_COLUMN, Barrier
from dagster_jet.engine.spark.epoch import EpochRunner
from dagster_jet.engine.spark.restore_task import RestoreItem, RestoreTask, restored_state
from dagster_jet.engine.spark.session import is_local
from dagster_jet.snapshot.manifest import Ack, ChunkSet, ShardState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def restore_shards(
    session: SparkSession,
    runner: EpochRunner,
    barrier: Barrier,
    chains: Mapping[str, tuple[tuple[ChunkSet, ...], ...]],
    dead_until_ms: Mapping[str, int],
) -> dict[str, tuple[ShardState, ...]]:
    """The state of every stage as local runs, divided among as many shards as there are now.

    Raises:
        SnapshotInvalidError: something that the manifest lists is missing or wrong.
    """
    count = runner.shard_count
    items = [
        RestoreItem(
            vertex=vertex,
            shard=shard,
            operator=runner.operator(vertex),
            chains=old if len(old) != count else (old[shard],),
            old_shard_count=len(old),
            new_shard_count=count,
            dead_until_ms=dead_until_ms.get(vertex),
        )
        for vertex, old in chains.items()
        for shard in range(count)
        if any(old)
    ]
    states = {vertex: [ShardState()] * count for vertex in chains}
    if items or not is_local(session):
        task = RestoreTask(barrier, tuple(items))
        try:
            # Where the first epoch will look for the runs.
            frame = runner.placement.shards().mapInArrow(task, f"{ACK_COLUMN} binary")
            acks = [Ack.from_bytes(bytes(row[0])) for row in frame.collect()]
            runner.placement.check()
        except (PySparkException, Py4JError, OSError) as error:
            raise runner.failure(error) from error
        for ack in acks:
            old = chains[ack.vertex]
            chain = old[ack.shard] if len(old) == count else ()
            states[ack.vertex][ack.shard] = restored_state(ack, chain)
    return {vertex: tuple(shards) for vertex, shards in states.items()}
