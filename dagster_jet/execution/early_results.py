"""When stages that asked for early results are due to show what is open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dagster_jet.pipeline.graph import Graph
from dagster_jet.pipeline.stateful import AggregateNode
from dagster_jet.snapshot.manifest import Ack


@dataclass
class EarlyResults:
    """Per execution, by wall clock. Not part of a snapshot: a restart shows everything anew."""

    graph: Graph
    _shown_at_ms: dict[str, int] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    """Stages that have taken rows in since they last showed results."""

    def due(self, now_ms: int) -> frozenset[str]:
        """Stages whose period is over and that have something new to show."""
        return frozenset(
            node.name
            for node in self.graph.stages
            if isinstance(node, AggregateNode)
            and node.early_results_ms is not None
            and node.name in self._changed
            and now_ms >= self._shown_at_ms.get(node.name, 0) + node.early_results_ms
        )

    def acked(self, shown: Iterable[str], acks: Iterable[Ack], now_ms: int) -> None:
        """An epoch is over in which the stages `shown` showed their early results."""
        for stage in shown:
            self._shown_at_ms[stage] = now_ms
            self._changed.discard(stage)
        self._changed.update(ack.vertex for ack in acks if ack.rows_in and ack.vertex not in shown)
