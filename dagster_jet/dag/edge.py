"""Edges: they assign each item to instances of the next vertex.

Source: Hazelcast Jet `Edge` and `Edge.RoutingPolicy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from dagster_jet.dag.queue import QUEUE_SIZE

KeyFunction = Callable[[object], object]
"""Returns the key of an item; the partitioner must support its type."""
Splitter = Callable[[object, int], Iterable[tuple[int, object]]]
"""(item, partition count) -> (partition, part of the item)s; for items with many keys."""


class Named(Protocol):
    """The part of a vertex that an edge needs."""

    @property
    def name(self) -> str: ...


class Routing(Enum):
    """Rule by which an edge selects consuming instances."""

    UNICAST = "unicast"
    """One instance at a time, round-robin; full queues are skipped."""
    ISOLATED = "isolated"
    """Always the same instance: keeps the order of a producing instance, without a shuffle."""
    PARTITIONED = "partitioned"
    """The owner of the partition of the item's key."""
    BROADCAST = "broadcast"
    """All instances."""


@dataclass(frozen=True)
class Edge:
    """One edge of a DAG. Every method returns a changed copy.

    Example:
        >>> edge = Edge.between("lines", "words").partitioned(lambda word: word)
        >>> edge = Edge.from_vertex("lines", 1).to_vertex("errors").isolated()
    """

    source: str
    source_ordinal: int = 0
    destination: str = ""
    destination_ordinal: int = 0
    routing: Routing = Routing.UNICAST
    priority: int = 0
    """Among the edges into a vertex, those of a lower value are exhausted first; snapshots wait
    for that."""
    queue_size: int = QUEUE_SIZE
    key: KeyFunction | None = None
    split: Splitter | None = None

    @classmethod
    def between(cls, source: str | Named, destination: str | Named) -> Edge:
        """Return an edge from ordinal 0 to ordinal 0 of two vertices, or of their names."""
        return cls(_name(source), destination=_name(destination))

    @classmethod
    def from_vertex(cls, source: str | Named, ordinal: int = 0) -> Edge:
        """Return an edge that leaves a vertex at an ordinal; set its destination by `to_vertex`."""
        return cls(_name(source), ordinal)

    def to_vertex(self, destination: str | Named, ordinal: int = 0) -> Edge:
        """Return this edge into a vertex at an ordinal."""
        return replace(self, destination=_name(destination), destination_ordinal=ordinal)

    def unicast(self) -> Edge:
        """Return this edge with `Routing.UNICAST`, the default."""
        return replace(self, routing=Routing.UNICAST, key=None, split=None)

    def isolated(self) -> Edge:
        """Return this edge with `Routing.ISOLATED`."""
        return replace(self, routing=Routing.ISOLATED, key=None, split=None)

    def broadcast(self) -> Edge:
        """Return this edge with `Routing.BROADCAST`."""
        return replace(self, routing=Routing.BROADCAST, key=None, split=None)

    def partitioned(self, key: KeyFunction) -> Edge:
        """Return this edge with all items of one key going to one instance.

        The key's saved state is restored to the same instance.

        Args:
            key: returns the key of an item. A tuple is a key of several columns; a `PartitionKey`
                is used as it is.
        """
        return replace(self, routing=Routing.PARTITIONED, key=key, split=None)

    def partitioned_by(self, split: Splitter) -> Edge:
        """Return this edge partitioned like `partitioned`, for items with rows of many keys."""
        return replace(self, routing=Routing.PARTITIONED, key=None, split=split)

    def with_priority(self, priority: int) -> Edge:
        """Return this edge with a priority; lower values are read first."""
        return replace(self, priority=priority)

    def with_queue_size(self, queue_size: int) -> Edge:
        """Return this edge with queues of ``queue_size`` items."""
        return replace(self, queue_size=queue_size)

    def __str__(self) -> str:
        return (
            f"{self.source}[{self.source_ordinal}] -> "
            f"{self.destination}[{self.destination_ordinal}]"
        )


def _name(vertex: str | Named) -> str:
    return vertex if isinstance(vertex, str) else vertex.name
