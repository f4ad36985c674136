"""Who takes what a stateful stage's task has to give: its own sinks at once, others downstream."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from dagster_jet.engine.spark.barrier import ACK_COLUMN
from dagster_jet.engine.spark.stage_task import REJECTED_COLUMN
from dagster_jet.engine.spark.stages import StagePlan, plan_stage
from dagster_jet.pipeline.graph import Graph, SinkNode, TimestampsNode
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.processors.rejects import REJECT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACK_TYPE = StructType([StructField(ACK_COLUMN, BinaryType())])
_REJECTED_TYPE = StructType(
    [
        StructField(
            REJECTED_COLUMN, StructType([StructField(f.name, StringType()) for f in REJECT_SCHEMA])
        )
    ]
)


@dataclass(frozen=True)
class StageWiring:
    """A stateful stage and who reads its results."""

    plan: StagePlan
    sinks: tuple[SinkNode, ...]
    """Written by the stage's own task."""
    reject_sinks: tuple[SinkNode, ...]
    """Of the rows set aside; written by the stage's own task, too."""
    passes_on: bool
    """Others read the results too."""
    passes_rejects: bool
    """Others read the rows set aside."""
    late_inputs: frozenset[int]
    """Whose late rows a sink wants."""
    told: tuple[str | None, ...] = ()
    """By input: the timestamps node whose rows and newest event the stage's tasks tell. None:
    Spark observes them, or there is nothing to observe."""

    def takes_out_late(self, ordinal: int) -> bool:
        """Late rows of this input do not reach the operator."""
        return ordinal < len(self.plan.late) and (
            self.plan.filters_late or ordinal in self.late_inputs
        )

    @property
    def output_type(self) -> StructType:
        """What the stage's task emits: acks, with the results, and the rows set aside, in between
        where somebody reads them."""
        if not self.is_read:
            return ACK_TYPE
        rejects = _REJECTED_TYPE if self.passes_rejects else ()
        return StructType([*self.plan.result_type, *rejects, *ACK_TYPE])

    @property
    def is_read(self) -> bool:
        return self.passes_on or self.passes_rejects


def wire_stage(
    job: str,
    graph: Graph,
    node: StatefulNode,
    inputs: Sequence[DataFrame],
    partition_count: int,
    watched: Collection[str] = (),
) -> StageWiring:
    """Plans the stage for inputs with these columns, and looks around who reads it.

    Args:
        watched: timestamps nodes that Spark has to observe, partition by partition.
    """
    readers = graph.downstream(node.name)
    late = [n for n in readers if isinstance(n, SinkNode) and n.of_late]
    told = told_inputs(graph, node, watched)
    plan = plan_stage(job, node, inputs, partition_count, tells_arrivals=any(told))
    rejects = [n for n in readers if isinstance(n, SinkNode) and n.of_rejects]
    others = [n for n in readers if n not in late and n not in rejects]
    sinks = tuple(
        n for n in others if isinstance(n, SinkNode) and n.sink.takes(plan.operator.result_schema)
    )
    reject_sinks = tuple(n for n in rejects if n.sink.takes(REJECT_SCHEMA))
    return StageWiring(
        plan,
        sinks,
        reject_sinks,
        passes_on=len(sinks) < len(others),
        passes_rejects=len(reject_sinks) < len(rejects),
        late_inputs=frozenset(n.late_input for n in late),
        told=() if plan.filters_late or not any(told) else told,
    )


def told_inputs(
    graph: Graph, node: StatefulNode, watched: Collection[str]
) -> tuple[str | None, ...]:
    """By input, the timestamps node whose rows all come to the stage, and to nobody else."""
    if any(isinstance(n, SinkNode) and n.of_late for n in graph.downstream(node.name)):
        return ()  # late rows are taken out before
    return tuple(
        name
        if isinstance(graph[name], TimestampsNode)
        and graph.downstream(name) == (node,)
        and node.upstream.count(name) == 1
        and name not in watched
        else None
        for name in node.upstream
    )
