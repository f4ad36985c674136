"""What a pipeline is once written: frozen nodes that point upstream. Building runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from dagster_jet.pipeline.aggregates import Aggregate
from dagster_jet.pipeline.windows import TumblingWindow


@runtime_checkable
class ConnectorDefinition(Protocol):
    """What the graph knows about a source, table or sink; the rest is its connector's business."""

    def describe(self) -> dict[str, str]:
        """Kind, place, format: for people, lineage and the plan's fingerprint. No secrets."""
        ...


@dataclass(frozen=True)
class Timestamps:
    """How event time is read from a stream."""

    column: str
    allowed_lag_ms: int
    idle_timeout_ms: int


@dataclass(frozen=True)
class SourceNode:
    name: str
    source: Any
    kind: str = field(default="source", init=False)

    @property
    def upstream(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class TimestampsNode:
    """Observes event time: before anything downstream filters rows away."""

    name: str
    upstream: tuple[str, ...]
    timestamps: Timestamps
    kind: str = field(default="timestamps", init=False)


@dataclass(frozen=True)
class TransformNode:
    """Stateless: a DataFrame in, a DataFrame out. Spark compiles it with its neighbours."""

    name: str
    upstream: tuple[str, ...]
    function: Callable[[Any], Any]
    kind: str = field(default="transform", init=False)


@dataclass(frozen=True)
class MergeNode:
    """Union by column name of several streams."""

    name: str
    upstream: tuple[str, ...]
    kind: str = field(default="merge", init=False)


@dataclass(frozen=True)
class EnrichNode:
    """Hash join with a batch table that is read once per execution."""

    name: str
    upstream: tuple[str, ...]
    table: Any
    on: tuple[str, ...]
    how: str
    kind: str = field(default="enrich", init=False)


@dataclass(frozen=True)
class AggregateNode:
    """Stateful: windowed aggregation by key."""

    name: str
    upstream: tuple[str, ...]
    keys: tuple[str, ...]
    window: TumblingWindow
    aggregates: tuple[tuple[str, Aggregate], ...]
    time_column: str
    kind: str = field(default="aggregate", init=False)


@dataclass(frozen=True)
class SinkNode:
    """Writes a stream out. `of_rejects`: takes the bad rows of its upstream source instead."""

    name: str
    upstream: tuple[str, ...]
    sink: Any
    of_rejects: bool = False
    kind: str = field(default="sink", init=False)


Node = (
    SourceNode | TimestampsNode | TransformNode | MergeNode | EnrichNode | AggregateNode | SinkNode
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
    def stages(self) -> tuple[AggregateNode, ...]:
        """The stateful stages."""
        return tuple(n for n in self if isinstance(n, AggregateNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(n for n in self if isinstance(n, SinkNode))

    def downstream(self, name: str) -> tuple[Node, ...]:
        return tuple(n for n in self if name in n.upstream)

    def is_named(self, name: str) -> bool:
        """Worth showing to people: sources, stateful stages and sinks."""
        return isinstance(self.nodes[name], SourceNode | AggregateNode | SinkNode)

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

    def upstream_timestamps(self, name: str) -> tuple[TimestampsNode, ...]:
        """Where the event time of `name` comes from, across stateful stages."""
        found: dict[str, TimestampsNode] = {}
        pending = list(self.nodes[name].upstream)
        while pending:
            node = self.nodes[pending.pop()]
            if isinstance(node, TimestampsNode):
                found[node.name] = node
            else:
                pending.extend(node.upstream)
        return tuple(found.values())

    def fingerprint(self) -> str:
        """Names, kinds, edges, keys, windows and aggregates; not the bodies of functions.

        Equal fingerprints mean that state and positions fit; it is stored with every snapshot.
        """
        shape = [
            [
                node.kind,
                node.name,
                list(node.upstream),
                [list(node.keys), node.window.size_ms, [(n, a.name) for n, a in node.aggregates]]
                if isinstance(node, AggregateNode)
                else None,
            ]
            for node in self
        ]
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
