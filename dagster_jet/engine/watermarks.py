"""Which watermark each stateful stage works under, from what was observed at the sources.

An epoch runs under what was known when it was planned: its own events move the watermark of the
next one. So a stage first takes in the epoch's rows, then closes the windows up to its watermark,
and a stage behind it sees those results before the same watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dagster_jet.core.watermark import EventTimeState, coalesced_minimum
from dagster_jet.pipeline.graph import Graph, Timestamps, TimestampsNode

FINAL_WATERMARK_MS = 9_000_000_000_000_000
"""After the last event of a finite input: every window is closed."""


@dataclass
class WatermarkTracker:
    """Event time of one job as of the last acked epoch."""

    graph: Graph
    nodes: dict[str, EventTimeState] = field(default_factory=dict)
    """Per timestamps node."""
    closed_end_ms: dict[str, int | None] = field(default_factory=dict)
    """Per stateful stage: windows up to this end have been emitted."""

    def __post_init__(self) -> None:
        for stage in self.graph.stages:
            self.closed_end_ms.setdefault(stage.name, None)
            for node in self.graph.upstream_timestamps(stage.name):
                self.nodes.setdefault(node.name, EventTimeState())

    def observe(self, node: str, rows: int, top_event_ms: int | None, now_ms: int) -> None:
        timestamps = self._timestamps()[node]
        state = self.nodes.get(node, EventTimeState())
        if rows:
            self.nodes[node] = state.observe(top_event_ms, timestamps.allowed_lag_ms, now_ms)

    def check_idle(self, now_ms: int) -> None:
        for name, timestamps in self._timestamps().items():
            if name in self.nodes:
                self.nodes[name] = self.nodes[name].check_idle(timestamps.idle_timeout_ms, now_ms)

    def watermark_ms(self, stage: str) -> int | None:
        """Least watermark over the inputs that are not idle; if all are, the highest seen."""
        states = [self.nodes[node.name] for node in self.graph.upstream_timestamps(stage)]
        return coalesced_minimum((state.watermark_ms, state.idle) for state in states)[0]

    def closing_end_ms(self, stage: str, *, final: bool) -> int | None:
        """Up to which window end the next epoch may emit; never less than before."""
        if final:
            return FINAL_WATERMARK_MS
        closed = self.closed_end_ms[stage]
        watermark = self.watermark_ms(stage)
        if watermark is None:
            return closed
        node = next(s for s in self.graph.stages if s.name == stage)
        end = node.window.last_closed_end(watermark)
        return end if closed is None else max(closed, end)

    def wants_epoch(self) -> bool:
        """Some window is ready to close although no input has arrived."""
        return any(
            self.closing_end_ms(stage, final=False) != closed
            for stage, closed in self.closed_end_ms.items()
            if closed is not None or self.watermark_ms(stage) is not None
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": {name: asdict(state) for name, state in self.nodes.items()},
            "closed_end_ms": dict(self.closed_end_ms),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        for name, state in saved.get("nodes", {}).items():
            if name in self.nodes:
                self.nodes[name] = EventTimeState(**state)
        for name, end in saved.get("closed_end_ms", {}).items():
            if name in self.closed_end_ms:
                self.closed_end_ms[name] = end

    def _timestamps(self) -> dict[str, Timestamps]:
        return {n.name: n.timestamps for n in self.graph if isinstance(n, TimestampsNode)}
