"""Nodes of a pipeline while it is being written: names are unique, connectors are complete."""

from __future__ import annotations

from typing import TypeVar

from dagster_jet.contract import Sink, Source, Table
from dagster_jet.contract.part import check_is_a
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.graph import EnrichNode, Node, SinkNode, SourceNode, TimestampsNode
from dagster_jet.pipeline.stateful import AggregateNode, StatefulNode

_N = TypeVar("_N", bound=Node)

NAME_BYTES_MAX = 100
"""The longest name of a pipeline or stage. A file system takes names of 255 bytes, and a member of
the store keys of 511, which also hold a partition's key and the name of a part of the state."""


def check_length(name: str, job: str | None = None, bytes_max: int = NAME_BYTES_MAX) -> None:
    """Refuses a name that keys of the store and names of folders cannot hold.

    Raises:
        PipelineError: the name is too long.
    """
    length = len(name.encode("utf-8", "surrogatepass")) + 2 * name.count("%")
    if length > bytes_max:
        escapes = " A % counts three, as in keys." if "%" in name else ""
        raise PipelineError(
            f"the name {name[:40]!r}... has {length} bytes, and a name takes at most {bytes_max}."
            f"{escapes}",
            job=job,
            cure="Use a shorter name; it becomes part of keys and paths.",
        )


class GraphBuilder:
    """Collects the nodes of one pipeline.

    Args:
        job: name of the pipeline, for errors.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.nodes: dict[str, Node] = {}

    def add(self, node: _N) -> _N:
        if not node.name or node.name in (".", "..") or any(c in node.name for c in "/\\\0\n"):
            raise PipelineError(
                f"{node.name!r} is not a valid stage name.",
                job=self.job,
                cure="Use letters, digits, '_', '-' and '.'; it becomes part of keys and paths.",
            )
        check_length(node.name, self.job)
        if node.name in self.nodes:
            raise PipelineError(
                f"two stages are named {node.name!r} "
                f"(a {self.nodes[node.name].kind.value} and a {node.kind.value}).",
                job=self.job,
                stage=node.name,
                cure="State and positions are matched by name: give each stage its own.",
            )
        self._check_connector(node)
        self._refuse_corrections(node)
        self.nodes[node.name] = node
        return node

    def end(self, name: str, kind: type[_N]) -> _N:
        node = self.nodes.get(name)
        if isinstance(node, kind):
            return node
        what = kind.kind.value
        known = [each.name for each in self.nodes.values() if isinstance(each, kind)]
        raise PipelineError(
            f"there is no {what} {name!r}.",
            job=self.job,
            cure=f"Its {what}s are {', '.join(known) or 'none'}.",
        )

    def replace(self, node: Node) -> None:
        """Replaces the node of this name."""
        self._check_connector(node)
        self.nodes[node.name] = node

    def _refuse_corrections(self, node: Node) -> None:
        """Refuses a stage with state that would count a window and its corrections."""
        if not isinstance(node, StatefulNode | TimestampsNode):
            return
        pending = list(node.upstream)
        while pending:
            upstream = self.nodes[pending.pop()]
            if isinstance(upstream, AggregateNode) and upstream.allowed_lateness_ms is not None:
                raise PipelineError(
                    f"it would count each corrected window of {upstream.name!r} several times.",
                    job=self.job,
                    stage=node.name,
                    cure="Behind a window with allowed_lateness= there may be sinks and stages "
                    f"without state. Compute both from the input of {upstream.name!r}, or leave "
                    "allowed_lateness= out and give the source a longer allowed_lag=.",
                )
            if not isinstance(upstream, StatefulNode):
                pending.extend(upstream.upstream)

    def _check_connector(self, node: Node) -> None:
        match node:
            case SourceNode():
                check_is_a(Source, node.source, job=self.job, stage=node.name)
            case SinkNode():
                check_is_a(Sink, node.sink, job=self.job, stage=node.name)
            case EnrichNode():
                check_is_a(Table, node.table, job=self.job, stage=node.name)

    def fresh(self, prefix: str) -> str:
        number = 1
        while f"{prefix}_{number}" in self.nodes:
            number += 1
        return f"{prefix}_{number}"
