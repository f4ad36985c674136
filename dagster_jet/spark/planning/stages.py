"""The operator of each kind of stateful stage, and its input frames."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    CountWindowNode,
    DeduplicateNode,
    JoinAsOfNode,
    JoinNode,
    ProcessorNode,
    RollingNode,
    StatefulMapInBatchesNode,
    StatefulMapNode,
    StatefulNode,
)
from dagster_jet.pipeline.windows import SessionWindow
from dagster_jet.spark.planning.aggregation import plan_rolling, plan_sessions, plan_windows
from dagster_jet.spark.planning.count_windows import plan_count_windows
from dagster_jet.spark.planning.operator_plan import OperatorPlan, Partitions
from dagster_jet.spark.planning.rows import (
    plan_deduplicate,
    plan_join,
    plan_join_as_of,
    plan_map,
    plan_map_in_batches,
    plan_processor,
)
from dagster_jet.spark.tasks.input_statistics import Statistics
from dagster_jet.system.own_task import naming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet.operators.operator import Operator


def plan_operator(
    job: str,
    node: StatefulNode,
    sources: Sequence[DataFrame],
    partition_count: int,
    *,
    statistics: Statistics = Statistics.NONE,
) -> OperatorPlan:
    """Analyses the stage on its inputs' schemas.

    Args:
        statistics: input statistics that its tasks should report, if they can.

    Raises:
        PipelineError: a key or an event-time column does not exist, or types do not fit.
    """
    with naming(node.name, job):
        plan = _planned(job, node, sources, Partitions(partition_count), statistics)
        return replace(plan, operator=_as_it_is(job, node, plan.operator))


def _planned(
    job: str,
    node: StatefulNode,
    sources: Sequence[DataFrame],
    partitions: Partitions,
    statistics: Statistics,
) -> OperatorPlan:
    match node:
        case AggregateNode(window=SessionWindow()):
            return plan_sessions(node, sources[0], partitions)
        case AggregateNode():
            return plan_windows(node, sources[0], partitions, statistics)
        case CountWindowNode():
            return plan_count_windows(node, sources[0], partitions)
        case RollingNode():
            return plan_rolling(node, sources[0], partitions, statistics)
        case DeduplicateNode():
            return plan_deduplicate(node, sources[0], partitions)
        case JoinNode():
            return plan_join(node, sources, partitions, job)
        case JoinAsOfNode():
            return plan_join_as_of(node, sources, partitions, job)
        case StatefulMapNode():
            return plan_map(node, sources[0], partitions)
        case StatefulMapInBatchesNode():
            return plan_map_in_batches(node, sources[0], partitions)
        case ProcessorNode():
            return plan_processor(node, sources[0], partitions, job)
    raise PipelineError(f"there is no operator for {node.kind.value}.", job=job, stage=node.name)


def _as_it_is(job: str, node: StatefulNode, operator: Operator) -> Operator:
    """Copies the operator with the current values that the user's functions close over. Otherwise
    frames made once, and those made in each epoch, would see different values.

    Raises:
        PipelineError: a function closes over an object that cannot be sent to tasks.
    """
    try:
        copied: Operator = pickle.loads(cloudpickle.dumps(operator))  # type: ignore[no-untyped-call]
    except Exception as error:  # objects fail to pickle in many ways
        raise PipelineError(
            f"the stage cannot be sent to tasks: {type(error).__name__}: {error}.",
            job=job,
            stage=node.name,
            cure="Create connections, locks and files inside the functions, in the task, and not "
            "before.",
        ) from error
    return copied
