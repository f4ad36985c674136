"""Graph of a pipeline: frozen nodes that refer to their upstream nodes. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dagster_jet.contract import Sink, Source, Table
from dagster_jet.pipeline.definition_digest import digest
from dagster_jet.pipeline.stage_kind import StageKind
from dagster_jet.pipeline.stateful import StatefulNode


@dataclass(frozen=True)
class Timestamps:
    """Settings for reading event time from a stream."""

    column: str
    allowed_lag_ms: int
    idle_timeout_ms: int
    max_lull_ms: int = 0
    """Time without events after which watermarks follow the wall clock, in ms; 0: never."""
    of_ingestion: bool = False
    """Whether the engine adds the column, with the planning time of the epoch."""
    max_ahead_ms: int | None = None
    """Rows further ahead of the clock do not move the watermark; None: there is no bound."""


@dataclass(frozen=True)
class SourceNode:
    name: str
    source: Source
    kind: ClassVar = StageKind.SOURCE

    @property
    def upstream(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class TimestampsNode:
    """Observes event time before downstream stages filter rows."""

    name: str
    upstream: tuple[str, ...]
    timestamps: Timestamps
    kind: ClassVar = StageKind.TIMESTAMPS


@dataclass(frozen=True)
class TransformNode:
    """Stateless function from DataFrame to DataFrame. Spark compiles it with adjacent stages."""

    name: str
    upstream: tuple[str, ...]
    function: Callable[..., Any]
    is_projection: bool = False
    """Whether `function` accepts names of additional columns to keep."""
    per_epoch: bool = False
    """Whether `function` may combine several rows, although it sees only one epoch."""
    is_constant: bool = False
    """Whether `function` is the same in every epoch, so its frames can be reused for other rows."""
    kind: ClassVar = StageKind.TRANSFORM


@dataclass(frozen=True)
class MergeNode:
    """Union of several streams, by column name."""

    name: str
    upstream: tuple[str, ...]
    kind: ClassVar = StageKind.MERGE


@dataclass(frozen=True)
class EnrichNode:
    """Hash join with a batch table."""

    name: str
    upstream: tuple[str, ...]
    table: Table
    on: tuple[str, ...]
    how: Literal["left", "inner", "semi", "anti"]
    refresh_ms: int | None = None
    """Maximum age of the read table in ms; None: read once per execution."""
    suffix: str = "_right"
    """Suffix of the table's columns whose names the stream has, too."""
    multiplies: bool = False
    """A row comes out once for each row of the table with its key; otherwise keys are unique."""
    kind: ClassVar = StageKind.ENRICH

    @property
    def adds_columns(self) -> bool:
        return self.how in ("left", "inner")


@dataclass(frozen=True)
class SinkNode:
    """Writes a stream, or its upstream node's late rows or dead letters, to a sink."""

    name: str
    upstream: tuple[str, ...]
    sink: Sink
    of_dead_letters: bool = False
    """Whether it receives the bad rows of its upstream source or stateful stage instead."""
    of_late: bool = False
    """Whether it receives the late rows of its upstream stage instead."""
    late_input: int = 0
    """Index of the stage's input whose late rows it receives."""
    kind: ClassVar = StageKind.SINK


Node = (
    SourceNode | TimestampsNode | TransformNode | MergeNode | EnrichNode | StatefulNode | SinkNode
)


@dataclass(frozen=True)
class Graph:
    """All nodes by name, upstream before downstream."""

    nodes: Mapping[str, Node]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(n for n in self if isinstance(n, SourceNode))

    @property
    def stages(self) -> tuple[StatefulNode, ...]:
        return tuple(n for n in self if isinstance(n, StatefulNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(n for n in self if isinstance(n, SinkNode))

    def downstream(self, name: str) -> tuple[Node, ...]:
        return tuple(n for n in self if name in n.upstream)

    def is_named(self, name: str) -> bool:
        """Whether the node is shown to users: sources, stateful stages and sinks."""
        return isinstance(self.nodes[name], SourceNode | StatefulNode | SinkNode)

    def named_upstreams(self, name: str) -> tuple[str, ...]:
        """Returns the nearest named nodes upstream of `name`, in order, without duplicates."""
        found: dict[str, None] = {}
        pending = list(self.nodes[name].upstream)
        while pending:
            upstream = pending.pop(0)
            if self.is_named(upstream):
                found.setdefault(upstream)
            else:
                pending = [*self.nodes[upstream].upstream, *pending]
        return tuple(found)

    def output_stages(self) -> frozenset[str]:
        """Returns the stages of which one has to move its watermark before any sink gets rows.
        Empty: sinks may get rows in every epoch."""
        at_once: set[str] = set()
        """Nodes that may have rows in every epoch."""
        found: set[str] = set()
        for node in self:
            waits = isinstance(node, StatefulNode) and node.emits_at_boundaries
            if isinstance(node, SourceNode) or not at_once.isdisjoint(node.upstream):
                if isinstance(node, SinkNode):
                    return frozenset()
                if not waits:
                    at_once.add(node.name)
                    continue
            if isinstance(node, SinkNode) and (node.of_late or node.of_dead_letters):
                return frozenset()
            if isinstance(node, StatefulNode):
                found.add(node.name)
        return frozenset(found)

    def upstream_sources(self, name: str) -> frozenset[str]:
        """Returns all direct and indirect sources of `name`."""
        node = self.nodes[name]
        if isinstance(node, SourceNode):
            return frozenset({name})
        return frozenset().union(*(self.upstream_sources(upstream) for upstream in node.upstream))

    def upstream_tables(self, name: str) -> tuple[Table, ...]:
        """Returns the tables that enrich the input of `name`, up to the nearest named stages."""
        found = []
        pending = list(self.nodes[name].upstream)
        while pending:
            node = self.nodes[pending.pop(0)]
            if isinstance(node, EnrichNode):
                found.append(node.table)
            if not self.is_named(node.name):
                pending = [*node.upstream, *pending]
        return tuple(found)

    def upstream_timestamps(self, name: str) -> tuple[tuple[TimestampsNode, int], ...]:
        """Returns the timestamps nodes that define the event time of `name`, across stages.

        Each comes with the delay of results by the stages in between, in ms. A node that is reached
        on several paths has its longest delay.
        """
        found: dict[str, int] = {}
        pending = [(upstream, 0) for upstream in self.nodes[name].upstream]
        while pending:
            reached, delay_ms = pending.pop()
            node = self.nodes[reached]
            if isinstance(node, TimestampsNode):
                found[reached] = max(found.get(reached, 0), delay_ms)
                continue
            if isinstance(node, StatefulNode):
                delay_ms += node.output_delay_ms
            pending.extend((upstream, delay_ms) for upstream in node.upstream)
        nodes = ((self.nodes[reached], delay_ms) for reached, delay_ms in found.items())
        return tuple((node, delay) for node, delay in nodes if isinstance(node, TimestampsNode))

    def way_from_source(self, name: str) -> tuple[Node, ...]:
        """Returns the nodes from a source to a timestamps node; empty if others than transforms lie
        between."""
        node, way = self.nodes[self.nodes[name].upstream[0]], []
        while isinstance(node, TransformNode):
            way.append(node)
            node = self.nodes[node.upstream[0]]
        return (node, *reversed(way)) if isinstance(node, SourceNode) else ()

    def plan(self) -> dict[str, Any]:
        """Returns the meaning of the saved state of every source and stage (`snapshot.plan`)."""
        plan: dict[str, Any] = {
            source.name: {"kind": StageKind.SOURCE.value} for source in self.sources
        }
        for stage in self.stages:
            plan[stage.name] = {
                "kind": stage.kind.value,
                "format": stage.state_format,
                **stage.shape(),
            }
        return plan

    def renamed_states(self, renamed: Mapping[str, str]) -> dict[str, str]:
        """Returns the part of `renamed` (present name by former name) that is not about sinks."""
        return {
            former: present
            for former, present in renamed.items()
            if not isinstance(self.nodes.get(present), SinkNode)
        }

    def definition(self, stage: str | None = None) -> str:
        """Hashes all that decides about the output: expressions, connectors, settings, functions.

        Args:
            stage: only this stage and what is upstream of it; None: the whole pipeline.
        """
        wanted = set(self.nodes) if stage is None else {stage}
        pending = [*wanted]
        while pending:
            new = [name for name in self.nodes[pending.pop()].upstream if name not in wanted]
            wanted.update(new)
            pending += new
        return digest([node for node in self if node.name in wanted])

    def fingerprint(self) -> str:
        """Hashes names, kinds, edges and what states depend on, but not the bodies of functions.

        Equal fingerprints mean that state and positions fit. Every snapshot stores its fingerprint.
        """
        shape = [
            [
                node.kind.value,
                node.name,
                list(node.upstream),
                dict(node.shape()) if isinstance(node, StatefulNode) else None,
            ]
            for node in self
        ]
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
