"""Phase 2 in Spark jobs: commits of processors, and pieces of sinks' commits."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dagster_jet.contract import Piece
from dagster_jet.errors import ExecutorLostError, JetError
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.snapshot.manifest import ShardState
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks import fail_point_orders
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.commit_pieces import DDL, CommitPieces
from dagster_jet.spark.tasks.commit_task import CommitItem, CommitTask
from dagster_jet.system.own_task import OwnTask


def commit_stages(
    runtime: SparkRuntime,
    plan: ExecutionPlan,
    barrier: Barrier,
    shards: Mapping[str, tuple[ShardState, ...]],
) -> None:
    """Lets every shard of these stages commit, from their state in a decided snapshot.

    Callable on any thread, but not beside an epoch, which would commit the same.

    Raises:
        JetError: translated from Spark's error, with its reaction. The record still says that phase
            2 is pending: the next start commits.
    """
    if not shards:
        return
    items = []
    for vertex, states in shards.items():
        operator = plan.operator(vertex)
        assert isinstance(operator, SparkProcessor | InEventOrder)
        items.append(CommitItem(vertex, operator, states))
    # On the executors of the stages' own tasks: the state is in local files there.
    acks = runtime.run_on_shards(CommitTask(barrier, tuple(items)), sorted(shards))
    missing = {(v, shard) for v, states in shards.items() for shard in range(len(states))}
    missing -= {(ack.vertex, ack.shard) for ack in acks}
    if missing:
        raise ExecutorLostError(
            f"no task answered about the commit of {sorted(missing)}.",
            job=plan.job,
            cure="The job restarts and commits again.",
        )


def carry_out(runtime: SparkRuntime, pieces: Sequence[Piece]) -> list[Any]:
    """Runs pieces of a sink's commit, one per task (`CommitContext.in_tasks`), beside an epoch.

    Raises:
        JetError: the error of the first failed piece, once all have ended; or translated from
            Spark's error. The call may be repeated.
    """
    try:
        fail_point_orders.hand_on(runtime.session.sparkContext)
        numbers = runtime.session.range(0, len(pieces), 1, len(pieces))
        rows = numbers.mapInArrow(OwnTask(CommitPieces(tuple(pieces))), DDL).collect()
    except (PySparkException, Py4JError, OSError) as error:
        raise runtime.failure(error) from error
    results = [pickle.loads(bytes(row["result"])) for row in sorted(rows, key=lambda r: r["piece"])]
    for result in results:
        if isinstance(result, JetError):
            raise result
    return results
