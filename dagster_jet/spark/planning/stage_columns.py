"""Column lineage: the columns of every source, stateful stage and sink, and their origins.

Between stages it comes from Spark's analysed plan, node by node; through stateful stages from their
kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster_jet.core.aggregate import Aggregate, CustomAggregate, TopN
from dagster_jet.core.columns import ColumnOrigin, StageColumn
from dagster_jet.pipeline.graph import EnrichNode, MergeNode, Node, SinkNode, TransformNode
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    CountWindowNode,
    DeduplicateNode,
    JoinAsOfNode,
    JoinNode,
    RollingNode,
    StatefulNode,
)
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.plans.column_origins import transform_origins

_WINDOW_COLUMNS = ("window_start", "window_end")

Origins = Mapping[str, frozenset[ColumnOrigin]]
"""By column."""


def stage_columns(plan: ExecutionPlan) -> dict[str, tuple[StageColumn, ...]]:
    """Returns the columns of each named stage. Starts no Spark job; takes tenths of a second.

    Dead-letter sinks are left out: their columns are always the same.

    Args:
        plan: the plan of an execution whose session is open.
    """
    return _StageColumns(plan).run()


@dataclass
class _StageColumns:
    plan: ExecutionPlan
    origins: dict[str, Origins] = field(default_factory=dict)
    """Origins of the rows after each node; downstream of a stage, the stage is the origin."""

    def run(self) -> dict[str, tuple[StageColumn, ...]]:
        found: dict[str, tuple[StageColumn, ...]] = {}
        for node in self.plan.graph:
            if isinstance(node, SinkNode):
                if not node.of_dead_letters:
                    found[node.name] = self._sink(node)
                continue
            made_of = self._made_of(node)
            self.origins[node.name] = made_of
            if self.plan.graph.is_named(node.name):
                found[node.name] = self._columns(node.name, made_of)
                columns = self.plan.frames[node.name].columns
                self.origins[node.name] = {
                    c: frozenset({ColumnOrigin(node.name, c)}) for c in columns
                }
        return found

    def _sink(self, node: SinkNode) -> tuple[StageColumn, ...]:
        stage = self.plan.graph[node.upstream[0]]
        # Late rows have the columns of the stage's input.
        source = stage.upstream[node.late_input] if node.of_late else stage.name
        return self._columns(source, self.origins[source])

    def _columns(self, frame: str, made_of: Origins) -> tuple[StageColumn, ...]:
        return tuple(
            StageColumn(
                column.name,
                column.dataType.simpleString(),
                column.nullable,
                tuple(sorted(made_of.get(column.name, ()), key=lambda o: (o.stage, o.column))),
            )
            for column in self.plan.frames[frame].schema
        )

    def _made_of(self, node: Node) -> Origins:
        above = [self.origins[name] for name in node.upstream]
        columns = self.plan.frames[node.name].columns
        match node:
            case StatefulNode():
                return _through_stage(node, columns, above)
            case TransformNode():
                given = self.plan.frames[node.upstream[0]]
                reads = transform_origins(given, self.plan.frames[node.name])
                return {name: _all(above[0], read) for name, read in reads.items()}
            case MergeNode():
                return {c: frozenset().union(*(each.get(c, ()) for each in above)) for c in columns}
            case EnrichNode():
                return {c: above[0].get(c) or _of_table(node, c, above[0]) for c in columns}
        return above[0] if above else {}  # timestamps pass through; a source has none


def _of_table(node: EnrichNode, column: str, stream: Origins) -> frozenset[ColumnOrigin]:
    plain = column.removesuffix(node.suffix)
    # The suffix is only added if the stream has a column of that name, too.
    name = plain if plain != column and plain in stream else column
    return frozenset({ColumnOrigin(node.name, name)})


def _through_stage(
    node: StatefulNode, columns: Sequence[str], inputs: Sequence[Origins]
) -> dict[str, frozenset[ColumnOrigin]]:
    keys: tuple[str, ...] = getattr(node, "keys", ())
    found: dict[str, frozenset[ColumnOrigin]] = {}
    for column in columns:
        if column in keys or isinstance(node, DeduplicateNode):
            found[column] = _any(inputs, [column])
        elif isinstance(node, JoinNode | JoinAsOfNode):
            found[column] = _joined(node, column, inputs)
        elif isinstance(node, AggregateNode | CountWindowNode | RollingNode):
            found[column] = _any(inputs, _aggregated(node, column))
        else:  # a user's function, which gets whole rows
            found[column] = frozenset().union(*(o for each in inputs for o in each.values()))
    return found


def _joined(
    node: JoinNode | JoinAsOfNode, column: str, inputs: Sequence[Origins]
) -> frozenset[ColumnOrigin]:
    left, right = inputs
    if column in left:
        return left[column]
    return right.get(column) or right.get(column.removesuffix(node.suffix), frozenset())


def _aggregated(node: AggregateNode | CountWindowNode | RollingNode, column: str) -> list[str]:
    """Input columns of a result's column; a window's ends come from event time."""
    aggregate = dict(node.aggregates).get(column)
    if aggregate is not None:
        return _read_by(aggregate)
    if isinstance(node, AggregateNode) and column in _WINDOW_COLUMNS:
        return [node.time.column]
    return []


def _read_by(aggregate: Aggregate) -> list[str]:
    if isinstance(aggregate, CustomAggregate):
        return list(aggregate.columns)
    columns = [] if aggregate.column is None else [aggregate.column]
    return [*columns, aggregate.rank] if isinstance(aggregate, TopN) else columns


def _any(inputs: Sequence[Origins], columns: Sequence[str]) -> frozenset[ColumnOrigin]:
    return frozenset().union(*(_all(each, columns) for each in inputs))


def _all(above: Origins, columns: Sequence[str] | frozenset[str]) -> frozenset[ColumnOrigin]:
    return frozenset().union(*(above.get(column, frozenset()) for column in columns))
