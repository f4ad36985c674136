"""Decides when stages with early results emit their open windows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dagster_jet.pipeline.graph import Graph
from dagster_jet.pipeline.stateful import AggregateNode
from dagster_jet.snapshot.manifest import Ack


@dataclass
class EarlyResults:
    """Due times of early results in one execution, by wall clock. Not saved in snapshots: a restart
    emits all open windows again."""

    graph: Graph
    _shown_at_ms: dict[str, int] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    """Stages that received rows since their last early results."""

    def due(self, now_ms: int) -> frozenset[str]:
        """Returns the stages whose period has passed and that received rows since."""
        return frozenset(
            node.name
            for node in self.graph.stages
            if isinstance(node, AggregateNode)
            and node.early_results_ms is not None
            and node.name in self._changed
            and now_ms >= self._shown_at_ms.get(node.name, 0) + node.early_results_ms
        )

    def acked(self, shown: Iterable[str], acks: Iterable[Ack], now_ms: int) -> None:
        """Notes an acked epoch in which the stages `shown` emitted early results."""
        for stage in shown:
            self._shown_at_ms[stage] = now_ms
            self._changed.discard(stage)
        self._changed.update(ack.vertex for ack in acks if ack.rows_in and ack.vertex not in shown)
