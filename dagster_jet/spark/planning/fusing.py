"""Decides which stages run in one task: of all shards, or of one shard.

Stages have levels. A stage is on the level of an upstream stage if rows can go from one to the
other without Spark, and one level above any other upstream stage. The stages of a level are one
task: no row leaves a task and comes back into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyarrow import types

from dagster_jet.pipeline.graph import Graph, TransformNode
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    DeduplicateNode,
    JoinAsOfNode,
    JoinNode,
    RollingNode,
    StatefulNode,
)
from dagster_jet.spark.planning.tagged_frames import TaggedFrames
from dagster_jet.spark.planning.wiring import StageWiring
from dagster_jet.spark.tasks.column_choice import ColumnChoice
from dagster_jet.spark.tasks.fusion import Fusion, Link
from dagster_jet.spark.tasks.input_statistics import InputRef


@dataclass(frozen=True)
class FusionPlan:
    """The stages of one task, with its input and output as Spark frames."""

    fusion: Fusion
    inputs: TaggedFrames
    outputs: TaggedFrames

    @property
    def name(self) -> str:
        """Name of its first stage."""
        return self.fusion.stages[0].vertex


@dataclass(frozen=True)
class Fusions:
    """Distribution of a pipeline's stages over tasks."""

    each: tuple[FusionPlan, ...]
    """Upstream ones first."""

    def of(self, stage: str) -> FusionPlan:
        return next(plan for plan in self.each if stage in plan.fusion.by_name)


def one_by_one(graph: Graph, wirings: Mapping[str, StageWiring]) -> Fusions:
    """One task per stage, for shards that are spread over tasks."""
    return Fusions(tuple(_fusion(graph, wirings, [stage.name], {}) for stage in graph.stages))


def by_level(
    graph: Graph,
    wirings: Mapping[str, StageWiring],
    plain: Mapping[str, ColumnChoice],
    *,
    of_one_shard: bool = False,
) -> Fusions:
    """The smallest number of tasks.

    Args:
        plain: selects that a task can do by itself.
        of_one_shard: a task has one shard; otherwise it has all of them.
    """
    links = {
        ref: link
        for ref, link in _links(graph, wirings, plain)
        if not of_one_shard or _stays_in_shard(graph, wirings, link)
    }
    levels: dict[str, int] = {}
    for stage in graph.stages:  # upstream ones first
        level = 0
        for ordinal, upstream in enumerate(stage.upstream):
            link = links.get(InputRef(stage.name, ordinal))
            if link is not None:
                level = max(level, levels[link.source])
            else:
                level = max([level, *(levels[s] + 1 for s in _stages_behind(graph, upstream))])
        levels[stage.name] = level
    fusions = []
    for level in sorted(set(levels.values())):
        names = [stage.name for stage in graph.stages if levels[stage.name] == level]
        inside = {ref: link for ref, link in links.items()
                  if ref.stage in names and link.source in names}  # fmt: skip
        fusions.append(_fusion(graph, wirings, names, inside))
    return Fusions(tuple(fusions))


def _fusion(
    graph: Graph,
    wirings: Mapping[str, StageWiring],
    names: list[str],
    links: Mapping[InputRef, Link],
) -> FusionPlan:
    inputs = [
        InputRef(name, ordinal) for name in names for ordinal in range(len(graph[name].upstream))
    ]
    fed = {(link.source, ref) for ref, link in links.items()}
    read = {name: [r for r in wirings[name].readers if (name, r) not in fed] for name in names}
    fusion = Fusion(
        stages=tuple(wirings[name].spec for name in names),
        heads=tuple(ref for ref in inputs if ref not in links),
        links=tuple(links[ref] for ref in inputs if ref in links),
        results_of=tuple(name for name in names if read[name]),
        dead_letters_of=tuple(name for name in names if wirings[name].passes_dead_letters),
    )
    return FusionPlan(fusion, TaggedFrames(fusion.inputs), TaggedFrames(fusion.outputs))


def _links(
    graph: Graph, wirings: Mapping[str, StageWiring], plain: Mapping[str, ColumnChoice]
) -> Iterator[tuple[InputRef, Link]]:
    """Inputs that another stage of a task could feed."""
    for stage in graph.stages:
        wiring = wirings[stage.name]
        for ordinal, name in enumerate(stage.upstream):
            ref, node, chosen = InputRef(stage.name, ordinal), graph[name], None
            while isinstance(node, TransformNode) and node.name in plain:
                own = plain[node.name]
                chosen = own if chosen is None else own.then(chosen)
                node = graph[node.upstream[0]]
            if not isinstance(node, StatefulNode) or ordinal in wiring.late_inputs:
                continue
            results = wirings[node.name].plan.operator.result_schema
            if chosen is not None:
                results = chosen.schema(results)
            rows = wiring.plan.inputs[ordinal]
            if rows.can_take(results):
                yield ref, Link(node.name, ref, rows, chosen)


def _stays_in_shard(graph: Graph, wirings: Mapping[str, StageWiring], link: Link) -> bool:
    """Whether the rows of a link have the key of the stage that they come from."""
    kinds = AggregateNode | RollingNode | DeduplicateNode | JoinNode | JoinAsOfNode
    if not isinstance(graph[link.source], kinds):
        return False  # a user's function may return rows of other keys
    plan = wirings[link.source].plan
    before, results = plan.inputs[0], plan.operator.result_schema
    if before.is_spread:
        return False  # its rows are in all shards, although they have no key
    taken = results.names if link.columns is None else list(link.columns.before)
    names = results.names if link.columns is None else list(link.columns.after)
    own = dict(zip(link.rows.names or names, taken, strict=True))
    return (
        tuple(own.get(key) for key in link.rows.keys) == before.keys
        and link.rows.hashes_wide == before.hashes_wide
        and all(
            key in before.schema.names
            and before.schema.field(key).type == results.field(key).type
            and not types.is_floating(results.field(key).type)
            for key in before.keys
        )
    )


def _stages_behind(graph: Graph, name: str) -> Iterator[str]:
    """The nearest stateful stages at or upstream of a node."""
    node = graph[name]
    if isinstance(node, StatefulNode):
        yield node.name
    else:
        for upstream in node.upstream:
            yield from _stages_behind(graph, upstream)
