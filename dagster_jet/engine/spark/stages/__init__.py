"""How Spark feeds the operator of each kind of stateful stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_jet.engine.spark.errors import naming
from dagster_jet.engine.spark.stages.aggregation import plan_rolling, plan_sessions, plan_windows
from dagster_jet.engine.spark.stages.plan import Partitions, StagePlan
from dagster_jet.engine.spark.stages.rows import (
    plan_deduplicate,
    plan_join,
    plan_map,
    plan_processor,
)
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    DeduplicateNode,
    JoinNode,
    ProcessorNode,
    RollingNode,
    StatefulMapNode,
    StatefulNode,
)
from dagster_jet.pipeline.windows import SessionWindow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_stage(
    job: str,
    node: StatefulNode,
    sources: Sequence[DataFrame],
    partition_count: int,
    *,
    tells_arrivals: bool = False,
) -> StagePlan:
    """Analyses the stage on its inputs' schemas.

    Args:
        tells_arrivals: its tasks are to tell what has arrived (`arrivals.py`), where they can.

    Raises:
        PipelineError: a key or an event-time column does not exist, or types do not fit.
    """
    partitions = Partitions(partition_count)
    with naming(node.name, job):
        match node:
            case AggregateNode(window=SessionWindow()):
                return plan_sessions(node, sources[0], partitions)
            case AggregateNode():
                return plan_windows(node, sources[0], partitions, tells_arrivals)
            case RollingNode():
                return plan_rolling(node, sources[0], partitions, tells_arrivals)
            case DeduplicateNode():
                return plan_deduplicate(node, sources[0], partitions)
            case JoinNode():
                return plan_join(node, sources, partitions, job)
            case StatefulMapNode():
                return plan_map(node, sources[0], partitions)
            case ProcessorNode():
                return plan_processor(node, sources[0], partitions, job)
    raise PipelineError(f"there is no operator for {node.kind}.", job=job, stage=node.name)


__all__ = ["StagePlan", "plan_stage"]
