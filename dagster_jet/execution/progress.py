"""Progress of stages and sources: event time and positions from the epochs' thread, totals from the
coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.execution.events import SourceProgress, StageProgress, with_totals
from dagster_jet.execution.polled_sources import PolledSources
from dagster_jet.pipeline.graph import Graph, TimestampsNode
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Counters, Run

_PUBLISH_EVERY_S = 1.0


@dataclass(frozen=True)
class InputProgress:
    """Event time and positions as of the last epoch, without totals."""

    stages: Mapping[str, StageProgress] = field(default_factory=dict)
    sources: Mapping[str, SourceProgress] = field(default_factory=dict)


class Progress:
    """Progress of one execution. The epochs' thread publishes it; any thread may read it."""

    def __init__(self, graph: Graph, inputs: PolledSources) -> None:
        self._graph, self._inputs = graph, inputs
        self._published = InputProgress()
        self._published_at = float("-inf")

    def publish(self) -> None:
        """Publishes the progress. Called on the epochs' thread after an epoch, and once the sources
        are restored."""
        self._published_at = time.monotonic()
        self._published = InputProgress(self._stages(), self._sources())

    def publish_if_due(self) -> None:
        """Publishes between epochs, because time alone may make a source idle or unavailable."""
        if time.monotonic() - self._published_at >= _PUBLISH_EVERY_S:
            self.publish()

    def stages(self, view: CoordinatorView) -> dict[str, StageProgress]:
        """Totals per named stage as of the last acked epoch."""
        progress, published = {}, self._published
        for node in self._graph:
            c = view.counters.get(node.name, Counters())
            if not self._graph.is_named(node.name) and not c.counted:
                continue
            runs = [run for state in view.shards.get(node.name, ()) for run in state.runs]
            known = published.stages.get(node.name, StageProgress(0, 0))
            by_clock = isinstance(node, StatefulNode) and node.follows_clock
            progress[node.name] = replace(
                with_totals(known, c),
                state_rows=sum(run.rows for run in runs),
                next_due_ms=None if by_clock else _next_due_ms(runs, known.watermark_ms),
            )
        return progress

    def sources(self, view: CoordinatorView) -> dict[str, SourceProgress]:
        """Position, lag and event time per source."""
        progress = {}
        for name, published in self._published.sources.items():
            c = view.counters.get(name, Counters())
            progress[name] = replace(published, rows_read=c.rows_in, lost=c.lost)
        return progress

    def _stages(self) -> dict[str, StageProgress]:
        watermarks = self._inputs.watermarks
        progress = {}
        for name in watermarks.reached_ms:
            held = watermarks.held_back_by(name)
            progress[name] = StageProgress(
                rows_in=0,
                rows_out=0,
                watermark_ms=watermarks.watermark_ms(name),
                held_back_by=held.source if held else None,
                held_back_partition=held.partition if held else None,
                held_back_since_ms=held.since_ms if held else None,
            )
        return progress

    def _sources(self) -> dict[str, SourceProgress]:
        inputs, progress = self._inputs, {}
        partitioned = set(inputs.partitioned().values())
        for name, reader in inputs.readers.items():
            times = [
                inputs.watermarks.source_watermark_ms(n.name)
                for n in self._graph.downstream(name)
                if isinstance(n, TimestampsNode)
            ]
            watermark_ms, idle = times[0] if times else (None, False)
            outage = inputs.polling.outages.get(name)
            progress[name] = SourceProgress(
                rows_read=0,
                position=reader.position(),
                lag=dict(reader.waiting().details),
                partition_lag=dict(reader.partitions()) if name in partitioned else {},
                watermark_ms=watermark_ms,
                idle=idle,
                unavailable_since_ms=outage.since_ms if outage else None,
                unavailable=outage.reason if outage else None,
            )
        return progress


def _next_due_ms(runs: Iterable[Run], watermark_ms: int | None) -> int | None:
    """Returns when the first state rows above the watermark are due. If the watermark lies within a
    run, this is the time of the run's last row."""
    passed_ms = float("-inf") if watermark_ms is None else watermark_ms
    dues = (
        run.earliest_ms if run.earliest_ms > passed_ms else run.latest_ms
        for run in runs
        if run.earliest_ms is not None and run.latest_ms is not None
    )
    return min((due for due in dues if passed_ms < due < FINAL_WATERMARK_MS), default=None)
