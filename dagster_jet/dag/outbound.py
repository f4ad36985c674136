"""Writes the output of one instance into the queues of one outbound edge."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_jet.dag.edge import Edge, Routing
from dagster_jet.dag.items import is_in_band
from dagster_jet.dag.outbox import ContractError, OutboundStream
from dagster_jet.dag.partitioning import Partitioning


class OutboundEdge:
    """Routes items. Watermarks, IDLE, barriers and DONE go to every consuming instance.

    An item for several queues is remembered until all of them have accepted it, so that a full
    queue neither loses nor duplicates a copy.

    Args:
        edge: the edge with its routing.
        queues: the queue to each consuming instance, by index.
        producer: index of the producing instance.
        partitioning: required for partitioned edges.
    """

    def __init__(
        self,
        edge: Edge,
        queues: Sequence[OutboundStream],
        *,
        producer: int = 0,
        partitioning: Partitioning | None = None,
    ) -> None:
        self._edge, self._queues, self._producer = edge, queues, producer
        self._partitioning = partitioning
        self._owed: list[tuple[int, object]] | None = None
        self._turn = producer % len(queues)

    def offer(self, item: object) -> bool:
        if self._owed is None:
            if self._edge.routing is Routing.UNICAST and not is_in_band(item):
                return self._offer_in_turn(item)
            self._owed = self._route(item)
        # Parts for one queue stay in order: after a refusal no further part goes to that queue.
        owed, full = [], set()
        for number, part in self._owed:
            if number in full or not self._queues[number].offer(part):
                full.add(number)
                owed.append((number, part))
        self._owed = owed or None
        return not owed

    def _offer_in_turn(self, item: object) -> bool:
        count = len(self._queues)
        for step in range(count):
            number = (self._turn + step) % count
            if self._queues[number].offer(item):
                self._turn = (number + 1) % count
                return True
        return False

    def _route(self, item: object) -> list[tuple[int, object]]:
        count = len(self._queues)
        if self._edge.routing is Routing.BROADCAST or is_in_band(item):
            return [(number, item) for number in range(count)]
        if self._edge.routing is Routing.ISOLATED:
            return [(self._producer % count, item)]
        assert self._partitioning is not None
        if self._edge.split is not None:
            parts = list(self._edge.split(item, self._partitioning.partition_count))
            for _, part in parts:
                if part is None or is_in_band(part):
                    raise ContractError(
                        f"emitted an item that {self._edge} splits into {part!r}.",
                        "Let the edge's split function return items: anything but None.",
                    )
            return [(partition % count, part) for partition, part in parts]
        assert self._edge.key is not None
        key = self._edge.key(item)
        try:
            return [(self._partitioning.owner_of(key, count), item)]
        except (TypeError, ValueError, OverflowError) as error:
            raise ContractError(
                f"emitted an item whose key {key!r} has no partition on {self._edge}: {error}.",
                "Let the edge's key function return a text, number, date, bytes, or a tuple.",
            ) from error
