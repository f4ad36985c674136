"""Watermark holds of a DAG: the inputs of processors that hold a watermark back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from dagster_jet.dag import DAG, WatermarkHold
from dagster_jet.dag.local.snapshot_coordinator import Participant


@dataclass(frozen=True)
class VertexWatermarkHold:
    """An input that keeps a processor's watermark from advancing."""

    vertex: str
    index: int
    upstream: str
    """The vertex whose watermark is behind."""
    queue: int | None
    """Position of the lagging queue among the producing instances that feed this processor; None:
    the whole edge lags behind the processor's other edges."""
    watermark: int | None
    """Last watermark of the input; None: it never sent one."""
    since_ms: int
    """Start of the hold, on the job's clock."""
    for_ms: int


def watermark_holds(
    dag: DAG, participants: Sequence[Participant], now_ms: int
) -> list[VertexWatermarkHold]:
    """Return lagging queues of an edge, and lagging edges of a processor."""
    found: list[VertexWatermarkHold] = []
    for participant in participants:
        inputs = participant.tasklet.input
        upstream = [edge.source for edge in dag.inbound(participant.vertex)]
        for edge in inputs.open_edges:
            for held in edge.coalescer.held_back_by(now_ms):
                source, queue = upstream[edge.ordinal], cast("int", held.input)
                found.append(_of_vertex(participant, source, queue, held))
        for held in inputs.coalescer.held_back_by(now_ms):
            source = upstream[cast("int", held.input)]
            found.append(_of_vertex(participant, source, None, held))
    return found


def _of_vertex(
    participant: Participant, source: str, queue: int | None, held: WatermarkHold
) -> VertexWatermarkHold:
    return VertexWatermarkHold(
        participant.vertex,
        participant.index,
        source,
        queue,
        held.watermark,
        held.since_ms,
        held.for_ms,
    )
