"""What a pipeline is once written: frozen nodes that point upstream. Building runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dagster_jet.pipeline.stage_kind import StageKind
from dagster_jet.pipeline.stateful import StatefulNode


@dataclass(frozen=True)
class Timestamps:
    """How event time is read from a stream."""

    column: str
    allowed_lag_ms: int
    idle_timeout_ms: int
    max_lull_ms: int = 0
    """After so long without events watermarks go on by wall clock; 0: never."""
    of_ingestion: bool = False
    """The engine adds the column, with the time at which the epoch was planned."""


@dataclass(frozen=True)
class SourceNode:
    name: str
    source: Any
    kind: ClassVar = StageKind.SOURCE

    @property
    def upstream(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class TimestampsNode:
    """Observes event time: before anything downstream filters rows away."""

    name: str
    upstream: tuple[str, ...]
    timestamps: Timestamps
    kind: ClassVar = StageKind.TIMESTAMPS


@dataclass(frozen=True)
class TransformNode:
    """Stateless: a DataFrame in, a DataFrame out. Spark compiles it with its neighbours."""

    name: str
    upstream: tuple[str, ...]
    function: Callable[..., Any]
    is_projection: bool = False
    """`function` may be called with the names of further columns to keep."""
    per_epoch: bool = False
    """`function` may look at several rows at once, although it sees one epoch only."""
    is_constant: bool = False
    """`function` does the same in every epoch: its frames may be run again for other rows."""
    kind: ClassVar = StageKind.TRANSFORM


@dataclass(frozen=True)
class MergeNode:
    """Union by column name of several streams."""

    name: str
    upstream: tuple[str, ...]
    kind: ClassVar = StageKind.MERGE


@dataclass(frozen=True)
class EnrichNode:
    """Hash join with a batch table."""

    name: str
    upstream: tuple[str, ...]
    table: Any
    on: tuple[str, ...]
    how: str
    refresh_ms: int | None = None
    """The table is read anew when what is known of it is older; None: once per execution."""
    suffix: str = "_right"
    """Of the table's columns whose names the stream has, too."""
    kind: ClassVar = StageKind.ENRICH


@dataclass(frozen=True)
class SinkNode:
    """Writes a stream out, or the late rows or dead letters of its upstream node."""

    name: str
    upstream: tuple[str, ...]
    sink: Any
    of_dead_letters: bool = False
    """Takes the bad rows of its upstream source, or of its stateful stage, instead."""
    of_late: bool = False
    """Takes the rows that came too late for its upstream stage instead."""
    late_input: int = 0
    """Of which of the stage's inputs."""
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
        """The stateful stages."""
        return tuple(n for n in self if isinstance(n, StatefulNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(n for n in self if isinstance(n, SinkNode))

    def downstream(self, name: str) -> tuple[Node, ...]:
        return tuple(n for n in self if name in n.upstream)

    def is_named(self, name: str) -> bool:
        """Worth showing to people: sources, stateful stages and sinks."""
        return isinstance(self.nodes[name], SourceNode | StatefulNode | SinkNode)

    def named_upstreams(self, name: str) -> tuple[str, ...]:
        """The nearest named nodes upstream of `name`, in order, each once."""
        found: dict[str, None] = {}
        pending = list(self.nodes[name].upstream)
        while pending:
            upstream = pending.pop(0)
            if self.is_named(upstream):
                found.setdefault(upstream)
            else:
                pending = [*self.nodes[upstream].upstream, *pending]
        return tuple(found)

    def upstream_sources(self, name: str) -> frozenset[str]:
        """All sources that reach `name`, through whatever is in between."""
        node = self.nodes[name]
        if isinstance(node, SourceNode):
            return frozenset({name})
        return frozenset().union(*(self.upstream_sources(upstream) for upstream in node.upstream))

    def upstream_tables(self, name: str) -> tuple[Any, ...]:
        """The tables that enrich what reaches `name`, as far as the nearest named stages."""
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
        """Where the event time of `name` comes from, across stateful stages.

        With each: by how much the stages in between hold results back, in ms. A node that is
        reached on several ways counts with its longest delay.
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
        """The nodes from the one source of a timestamps node up to it, if all between are
        transforms; else empty."""
        node, way = self.nodes[self.nodes[name].upstream[0]], []
        while isinstance(node, TransformNode):
            way.append(node)
            node = self.nodes[node.upstream[0]]
        return (node, *reversed(way)) if isinstance(node, SourceNode) else ()

    def plan(self) -> dict[str, Any]:
        """What the saved state of every source and stateful stage means (`snapshot.plan`)."""
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

    def fingerprint(self) -> str:
        """Names, kinds, edges, what states depend on; not the bodies of functions.

        Equal fingerprints mean that state and positions fit; it is stored with every snapshot.
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
