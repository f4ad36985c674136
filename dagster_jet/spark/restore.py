"""Restore as one Spark job: every shard reads its partitions from the store, in parallel."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_jet.operators.operator import Operator
from dagster_jet.snapshot.manifest import ChunkSet, ShardState
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.barrier import Barrier, owned_partitions
from dagster_jet.spark.tasks.restore_task import RestoreItem, RestoreTask, restored_state


def restore_shards(
    runtime: SparkRuntime,
    plan: ExecutionPlan,
    barrier: Barrier,
    chains: Mapping[str, tuple[tuple[ChunkSet, ...], ...]],
    expired_until_ms: Mapping[str, int],
) -> dict[str, tuple[ShardState, ...]]:
    """Restores the state of every stage as local runs, divided among the current shards.

    Raises:
        SnapshotInvalidError: an entry of the manifest is missing or wrong.
        JetError: any other error, translated from Spark's.
    """
    count = runtime.shard_count
    saved = {vertex: old for vertex, old in chains.items() if any(old)}
    items = [
        tuple(
            RestoreItem(
                vertex=vertex,
                shard=shard,
                operator=plan.operator(vertex),
                chains=needed_chains(
                    old, shard, count, barrier.partition_count, plan.operator(vertex)
                ),
                old_shard_count=len(old),
                new_shard_count=count,
                expired_until_ms=expired_until_ms.get(vertex),
            )
            for vertex, old in saved.items()
        )
        for shard in range(count)
    ]
    states = {vertex: [ShardState()] * count for vertex in chains}
    if saved or not runtime.is_local:
        # On the executors where the first epoch reads the runs.
        for ack in runtime.run_on_shards(RestoreTask(barrier, items)):
            old = chains[ack.vertex]
            chain = old[ack.shard] if len(old) == count and not ack.unsaved else ()
            states[ack.vertex][ack.shard] = restored_state(ack, chain)
    return {vertex: tuple(shards) for vertex, shards in states.items()}


def needed_chains(
    old: tuple[tuple[ChunkSet, ...], ...],
    shard: int,
    shard_count: int,
    partition_count: int,
    operator: Operator,
) -> tuple[tuple[ChunkSet, ...], ...]:
    """The chains that hold a shard's partitions; all chains if the operator's shards share rows."""
    if len(old) != shard_count and operator.shares_rows:
        return old
    partitions = owned_partitions(shard, shard_count, partition_count)
    return tuple(old[n] for n in sorted({one % len(old) for one in partitions}))
