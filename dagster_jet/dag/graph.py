"""A DAG of processors: vertices, edges, and the number of instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from dagster_jet.dag.edge import Edge, Routing
from dagster_jet.dag.processor import Processor
from dagster_jet.errors import PipelineError

Supplier = Callable[[], Processor]
"""Creates one instance; called once per instance and start. `init` passes its index."""


@dataclass(frozen=True)
class Vertex:
    """A step of a DAG: `local_parallelism` instances of one processor."""

    name: str
    supplier: Supplier
    local_parallelism: int | None = None
    """Number of instances per machine; None: the job's default."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PipelineError("a vertex needs a name.", cure="State is matched by it.")
        if self.local_parallelism is not None and self.local_parallelism < 1:
            raise PipelineError(
                f"local_parallelism is {self.local_parallelism}.",
                stage=self.name,
                cure="Use 1 or more, or None for the job's.",
            )


class DAG:
    """A graph of vertices and edges. Building it runs nothing.

    Example:
        >>> from dagster_jet.dag import Processor
        >>> dag = DAG("copy")
        >>> source = dag.new_vertex("source", Processor)
        >>> sink = dag.new_vertex("sink", Processor)
        >>> dag.edge(Edge.between(source, sink).isolated())
        DAG('copy', vertices=['source', 'sink'])
    """

    def __init__(self, name: str = "dag") -> None:
        self.name = name
        self._vertices: dict[str, Vertex] = {}
        self._edges: list[Edge] = []

    # --- building -------------------------------------------------------------------------------

    def vertex(self, vertex: Vertex) -> DAG:
        """Add a vertex.

        Raises:
            PipelineError: a vertex of this name exists.
        """
        if vertex.name in self._vertices:
            raise PipelineError(
                "there are two vertices of this name.",
                stage=vertex.name,
                cure="State and positions are matched by name: give each one its own.",
            )
        self._vertices[vertex.name] = vertex
        return self

    def new_vertex(
        self, name: str, supplier: Supplier, *, local_parallelism: int | None = None
    ) -> Vertex:
        """Create a vertex, add it and return it.

        Raises:
            PipelineError: a vertex of this name exists, the name is empty, or the parallelism is 0.
        """
        vertex = Vertex(name, supplier, local_parallelism)
        self.vertex(vertex)
        return vertex

    def edge(self, edge: Edge) -> DAG:
        """Add an edge.

        Raises:
            PipelineError: a vertex is unknown, an ordinal is in use, or there is a cycle.
        """
        for name in (edge.source, edge.destination):
            if name not in self._vertices:
                raise PipelineError(f"edge {edge} names a vertex {name!r} that is not in the DAG.")
        for other in self._edges:
            if (other.source, other.source_ordinal) == (edge.source, edge.source_ordinal):
                raise PipelineError(
                    f"edges {other} and {edge} leave it at the same ordinal.",
                    stage=edge.source,
                    cure=f"Use Edge.from_vertex({edge.source!r}, {edge.source_ordinal + 1}).",
                )
            if (other.destination, other.destination_ordinal) == (
                edge.destination,
                edge.destination_ordinal,
            ):
                raise PipelineError(
                    f"edges {other} and {edge} enter it at the same ordinal.",
                    stage=edge.destination,
                    cure=f"Use .to_vertex({edge.destination!r}, {edge.destination_ordinal + 1}).",
                )
        self._edges.append(edge)
        try:
            self.in_order()
        except PipelineError:
            self._edges.pop()
            raise
        return self

    # --- reading --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Vertex]:
        return iter(self.in_order())

    def __getitem__(self, name: str) -> Vertex:
        return self._vertices[name]

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, in the order in which they were added."""
        return tuple(self._edges)

    def inbound(self, name: str) -> tuple[Edge, ...]:
        """Return the edges into a vertex, by ordinal."""
        found = (edge for edge in self._edges if edge.destination == name)
        return tuple(sorted(found, key=lambda edge: edge.destination_ordinal))

    def outbound(self, name: str) -> tuple[Edge, ...]:
        """Return the edges out of a vertex, by ordinal."""
        found = (edge for edge in self._edges if edge.source == name)
        return tuple(sorted(found, key=lambda edge: edge.source_ordinal))

    def in_order(self) -> list[Vertex]:
        """Return all vertices in topological order.

        Raises:
            PipelineError: the edges form a cycle.
        """
        before: dict[str, set[str]] = {name: set() for name in self._vertices}
        for edge in self._edges:
            before[edge.destination].add(edge.source)
        try:
            return [self._vertices[name] for name in TopologicalSorter(before).static_order()]
        except CycleError as error:
            raise PipelineError(
                f"the vertices form a cycle: {' -> '.join(reversed(error.args[1]))}.",
                cure="A DAG has none.",
            ) from None

    def awaited(self) -> frozenset[str]:
        """Return the vertices whose end snapshots wait for: all that feed a prioritised edge.

        While such an edge is open its consumer reads nothing else, so barriers on the other edges
        could not be aligned.
        """
        awaited: set[str] = set()
        for vertex in self._vertices:
            inbound = self.inbound(vertex)
            last = max((edge.priority for edge in inbound), default=0)
            awaited |= {edge.source for edge in inbound if edge.priority < last}
        queue = list(awaited)
        while queue:
            for edge in self.inbound(queue.pop()):
                if edge.source not in awaited:
                    awaited.add(edge.source)
                    queue.append(edge.source)
        return frozenset(awaited)

    def validate(self) -> None:
        """Raise `PipelineError` if the DAG cannot be run; called before every start."""
        if not self._vertices:
            raise PipelineError("the DAG has no vertices.", job=self.name)
        for name in self._vertices:
            into = [edge.destination_ordinal for edge in self.inbound(name)]
            out = [edge.source_ordinal for edge in self.outbound(name)]
            for ordinals, what in ((into, "inbound"), (out, "outbound")):
                if ordinals != list(range(len(ordinals))):
                    raise PipelineError(
                        f"its {what} ordinals are {ordinals}, not 0 to {len(ordinals) - 1}.",
                        job=self.name,
                        stage=name,
                        cure="Leave no gap.",
                    )
        for edge in self._edges:
            if edge.routing is Routing.PARTITIONED and edge.key is None and edge.split is None:
                raise PipelineError(
                    f"edge {edge} is partitioned without a key.",
                    job=self.name,
                    cure="Use .partitioned(key) or .partitioned_by(split).",
                )
            if edge.queue_size < 1:
                raise PipelineError(f"edge {edge} has queue_size {edge.queue_size}.", job=self.name)

    def __repr__(self) -> str:
        return f"DAG({self.name!r}, vertices={list(self._vertices)})"
