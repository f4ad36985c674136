"""Result of the analysis of a pipeline; an execution's epochs are built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.operator import Operator
from dagster_jet.operators.saved_schema import saved_columns
from dagster_jet.operators.user.spark_processor import SparkProcessor
from dagster_jet.pipeline.graph import Graph, SinkNode, TransformNode
from dagster_jet.snapshot.plan import COLUMNS
from dagster_jet.spark.planning.event_time import TimestampsPlan
from dagster_jet.spark.planning.fusing import Fusions
from dagster_jet.spark.planning.wiring import StageWiring
from dagster_jet.spark.tasks.input_statistics import InputRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ExecutionPlan:
    """A pipeline as analysed once per execution, on empty inputs."""

    job: str
    graph: Graph
    stages: Mapping[str, StageWiring]
    one_by_one: Fusions
    """Tasks of an epoch whose shards are spread over tasks: one fusion per stage."""
    by_level: Fusions
    """Tasks of an epoch in which one task has all shards."""
    by_shard: Fusions
    """Tasks of a small epoch whose shards are spread over executors."""
    timestamps: Mapping[str, TimestampsPlan]
    partition_columns: Mapping[str, tuple[str, ...]]
    """Sources and transforms whose frames keep the column with the source's partition; with each,
    the columns that its projection must be told to keep."""
    stream_columns: Mapping[str, tuple[str, ...]]
    """Columns of the rows before each enrichment."""
    shared: frozenset[str]
    """Nodes whose frame several branches read: it is materialised once per epoch. Sinks of one pass
    are one branch."""
    one_pass: Mapping[str, tuple[SinkNode, ...]]
    """By sink: the sinks of the same rows that one task writes in one pass, itself among them."""
    counted_sources: frozenset[str]
    """Sources whose rows Spark counts, because no timestamps node counts them."""
    frames: Mapping[str, DataFrame] = field(repr=False)
    """Frames of every node except sinks, on empty inputs."""

    @property
    def partitioned(self) -> dict[str, str]:
        """Source of every timestamps node that observes partitions one by one."""
        return {
            name: plan.partitions_of
            for name, plan in self.timestamps.items()
            if plan.partitions_of is not None
        }

    @cached_property
    def counted_by(self) -> Mapping[str, InputRef]:
        """The input whose tasks count the events, of every timestamps node that tasks count."""
        counted = {name: plan.counted_by for name, plan in self.timestamps.items()}
        return {name: one for name, one in counted.items() if one is not None}

    @property
    def transforms(self) -> tuple[str, ...]:
        """Nodes with users' functions that run in the epoch's own Spark job."""
        sources = [node.name for node in self.graph.sources if node.source.runs_users_plans]
        return (*sources, *(n.name for n in self.graph if isinstance(n, TransformNode)))

    @property
    def processors(self) -> dict[str, SparkProcessor]:
        """Users' processors by stage."""
        found = {}
        for name in self.stages:
            operator = self.operator(name)
            inner = operator.inner if isinstance(operator, InEventOrder) else operator
            if isinstance(inner, SparkProcessor):
                found[name] = inner
        return found

    def operator(self, stage: str) -> Operator:
        return self.stages[stage].plan.operator

    def stage_plans(self) -> dict[str, Any]:
        """`Graph.plan`, with the columns of every stage's state from the analysis."""
        columns = {name: {COLUMNS: saved_columns(self.operator(name))} for name in self.stages}
        plan = self.graph.plan()
        return {name: {**stage, **columns.get(name, {})} for name, stage in plan.items()}
