"""Phase 2 of the stages as one Spark job: processors commit what they have prepared."""

from __future__ import annotations

from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dagster_jet.engine.spark.barrier import ACK_COLUMN, Barrier
from dagster_jet.engine.spark.commit_task import CommitItem, CommitTask
from dagster_jet.engine.spark.epoch import EpochRunner
from dagster_jet.errors import ExecutorLostError
from dagster_jet.processors.processor_operator import ProcessorOperator
from dagster_jet.snapshot.manifest import Ack, ShardState


def commit_stages(
    runner: EpochRunner, barrier: Barrier, shards: Mapping[str, tuple[ShardState, ...]]
) -> None:
    """Lets every shard of these stages commit, from their state in a decided snapshot.

    Any thread, but no epoch runs beside it: it would commit the same.

    Raises:
        JetError: translated from Spark's error, with the reaction it asks for. The record still
            says that phase 2 is to come: the next start commits.
    """
    if not shards:
        return
    items = []
    for vertex, states in shards.items():
        operator = runner.operator(vertex)
        assert isinstance(operator, ProcessorOperator)
        items.append(CommitItem(vertex, operator, states))
    try:
        # Where the stages' own tasks run: the state is in local files there.
        frame = runner.placement.shards().mapInArrow(
            CommitTask(barrier, tuple(items)), f"{ACK_COLUMN} binary"
        )
        acks = [Ack.from_bytes(bytes(row[0])) for row in frame.collect()]
        runner.placement.check()
    except (PySparkException, Py4JError, OSError) as error:
        raise runner.failure(error, sorted(shards)) from error
    missing = {(v, shard) for v, states in shards.items() for shard in range(len(states))}
    missing -= {(ack.vertex, ack.shard) for ack in acks}
    if missing:
        raise ExecutorLostError(
            f"no answer to the commit of {sorted(missing)}.",
            job=runner.job,
            cure="The job restarts and commits again.",
        )
