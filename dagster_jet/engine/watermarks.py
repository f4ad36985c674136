"""Which watermark each stateful stage works under, from what was observed at the sources.

An epoch runs under what was known when it was planned: its own events move the watermark of the
next one. So a stage first takes in the epoch's rows, then closes what lies up to its watermark,
and a stage behind it sees those results before the same watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from dagster_jet.core.watermark import FINAL_WATERMARK_MS, EventTimeState, coalesced_minimum
from dagster_jet.pipeline.graph import Graph, TimestampsNode


@dataclass
class WatermarkTracker:
    """Event time of one job as of the last acked epoch."""

    graph: Graph
    nodes: dict[str, EventTimeState] = field(default_factory=dict)
    """Per timestamps node."""
    reached_ms: dict[str, int | None] = field(default_factory=dict)
    """Per stateful stage: the watermark under which its last epoch ended: what it closes
    off has been emitted."""

    def __post_init__(self) -> None:
        # The graph is frozen, and these are asked several times per epoch.
        self._timestamps = {
            n.name: n.timestamps for n in self.graph if isinstance(n, TimestampsNode)
        }
        self._stages = {stage.name: stage for stage in self.graph.stages}
        self._inputs = {name: self.graph.upstream_timestamps(name) for name in self._stages}
        for name, inputs in self._inputs.items():
            self.reached_ms.setdefault(name, None)
            for node, _ in inputs:
                self.nodes.setdefault(node.name, EventTimeState())

    def observe(self, node: str, rows: int, top_event_ms: int | None, now_ms: int) -> None:
        timestamps = self._timestamps[node]
        state = self.nodes.get(node, EventTimeState())
        if rows:
            self.nodes[node] = state.observe(top_event_ms, timestamps.allowed_lag_ms, now_ms)

    def ingestion_ms(self, now_ms: int) -> dict[str, int]:
        """Event time of the next epoch's rows where it is that of reading. Never before the last:
        the clock may be another host's by now, or have been set back, and rows are not late."""
        return {
            name: max(now_ms, self.nodes.get(name, EventTimeState()).top_event_ms or now_ms)
            for name, timestamps in self._timestamps.items()
            if timestamps.of_ingestion
        }

    def check_idle(self, now_ms: int) -> None:
        for name, timestamps in self._timestamps.items():
            if name in self.nodes:
                self.nodes[name] = self.nodes[name].check_idle(timestamps.idle_timeout_ms, now_ms)

    def watermark_ms(self, stage: str) -> int | None:
        """Least watermark over the inputs that are not idle; if all are, the highest seen."""
        inputs = [(self.nodes[node.name], delay_ms) for node, delay_ms in self._inputs[stage]]
        return coalesced_minimum(
            (None if state.watermark_ms is None else state.watermark_ms - delay_ms, state.idle)
            for state, delay_ms in inputs
        )[0]

    def held_back_by(self, stage: str) -> tuple[str, int | None] | None:
        """The source that keeps the stage's watermark where it is, and since when (wall clock).

        None: no input is active. A source that never had a watermark comes before all others.
        """
        active = [
            (state, delay_ms, node.upstream[0])
            for node, delay_ms in self._inputs[stage]
            if not (state := self.nodes[node.name]).idle
        ]
        if not active:
            return None

        def watermark(input: tuple[EventTimeState, int, str]) -> float:
            state, delay_ms, _ = input
            return -inf if state.watermark_ms is None else state.watermark_ms - delay_ms

        state, _, source = min(active, key=watermark)
        return source, state.advanced_at_ms

    def next_ms(self, stage: str, *, final: bool) -> int | None:
        """The watermark for the stage's next epoch; never less than the one it has reached."""
        if final:
            return FINAL_WATERMARK_MS
        reached, watermark = self.reached_ms[stage], self.watermark_ms(stage)
        if watermark is None:
            return reached
        watermark = self._stages[stage].floor_watermark(watermark)
        return watermark if reached is None else max(reached, watermark)

    def wants_epoch(self) -> bool:
        """Some stage has something to close although no input has arrived."""
        return any(
            self.next_ms(stage, final=False) != reached
            for stage, reached in self.reached_ms.items()
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": {name: asdict(state) for name, state in self.nodes.items()},
            "reached_ms": dict(self.reached_ms),
            # For people (`dagster-jet watermarks`); worked out anew after a restart.
            "held_back_by": {stage: self.held_back_by(stage) for stage in self.reached_ms},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        for name, state in saved.get("nodes", {}).items():
            if name in self.nodes:
                self.nodes[name] = EventTimeState(**state)
        # Snapshots of 0.1 called it so, when windows were the only stages.
        reached = saved.get("reached_ms", saved.get("closed_end_ms", {}))
        for name, watermark in reached.items():
            if name in self.reached_ms:
                self.reached_ms[name] = watermark
