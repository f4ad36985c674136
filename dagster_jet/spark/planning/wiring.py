"""Who takes what a stateful stage's task has to give: its own sinks at once, others downstream."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from dagster_jet.operators.user.dead_letters import DEAD_LETTER_SCHEMA
from dagster_jet.pipeline.graph import Graph, SinkNode, TimestampsNode
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.spark.planning.operator_plan import OperatorPlan
from dagster_jet.spark.planning.stages import plan_operator
from dagster_jet.spark.tasks.barrier import ACK_COLUMN
from dagster_jet.spark.tasks.stage_input import StageSpec
from dagster_jet.spark.tasks.stage_task import DEAD_LETTER_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACK_TYPE = StructType([StructField(ACK_COLUMN, BinaryType())])
_DEAD_LETTER = StructType([StructField(f.name, StringType()) for f in DEAD_LETTER_SCHEMA])
_DEAD_LETTER_TYPE = StructType([StructField(DEAD_LETTER_COLUMN, _DEAD_LETTER)])


@dataclass(frozen=True)
class StageWiring:
    """A stateful stage, what feeds it and who reads what comes out of it."""

    plan: OperatorPlan
    spec: StageSpec
    """What its tasks are told in every epoch."""
    late_inputs: frozenset[int]
    """Inputs whose late rows a sink wants."""
    counted_inputs: tuple[str | None, ...] = ()
    """By input: the timestamps node whose statistics the stage's acks carry. None: Spark observes
    the node, or there is nothing to observe."""

    def takes_out_late(self, ordinal: int) -> bool:
        """Late rows of this input do not reach the operator."""
        return ordinal < len(self.plan.late) and (
            self.plan.filters_late or ordinal in self.late_inputs
        )

    @property
    def own_sinks(self) -> tuple[str, ...]:
        """Sinks that the stage's own tasks write."""
        return tuple(name for name, _ in (*self.spec.sinks, *self.spec.dead_letter_sinks))

    @property
    def output_type(self) -> StructType:
        """What the stage's task emits: acks, with the results, and the dead letters, in between
        where somebody reads them."""
        if not self.is_read:
            return ACK_TYPE
        dead_letters = _DEAD_LETTER_TYPE if self.spec.passes_dead_letters else ()
        return StructType([*self.plan.result_type, *dead_letters, *ACK_TYPE])

    @property
    def is_read(self) -> bool:
        return self.spec.passes_on or self.spec.passes_dead_letters


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
    counted = counted_inputs(graph, node, watched)
    plan = plan_operator(job, node, inputs, partition_count, reports_statistics=any(counted))
    if plan.filters_late or not any(counted):
        counted = ()
    letters = [n for n in readers if isinstance(n, SinkNode) and n.of_dead_letters]
    others = [n for n in readers if n not in late and n not in letters]
    sinks = [
        n for n in others if isinstance(n, SinkNode) and n.sink.takes(plan.operator.result_schema)
    ]
    letter_sinks = [n for n in letters if n.sink.takes(DEAD_LETTER_SCHEMA)]
    spec = StageSpec(
        vertex=node.name,
        operator=plan.operator,
        sinks=tuple((n.name, n.sink) for n in sinks),
        dead_letter_sinks=tuple((n.name, n.sink) for n in letter_sinks),
        passes_on=len(sinks) < len(others),
        passes_dead_letters=len(letter_sinks) < len(letters),
        reports_statistics=bool(counted),
        statistics_columns=plan.statistics_columns,
    )
    return StageWiring(plan, spec, frozenset(n.late_input for n in late), counted)


def counted_inputs(
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
