"""One point of a pipeline: where a stream is in the graph, and its event time."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.builder import GraphBuilder
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Node, TimestampsNode
from dagster_jet.pipeline.stateful import CountWindowNode, StatefulNode


class Point:
    """Base class of all stages."""

    def __init__(self, builder: GraphBuilder, node: str, time: EventTime | None) -> None:
        self._builder, self._node, self._time = builder, node, time

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._node!r} of the pipeline {self._builder.job!r}>"

    @property
    def _worker(self) -> Node:
        """Node of the stage itself; `with_timestamps` may have added one after it."""
        node = self._builder.nodes[self._node]
        return self._builder.nodes[node.upstream[0]] if isinstance(node, TimestampsNode) else node

    def _event_time(self, name: str, what: str = "the stage") -> EventTime:
        if self._time is None:
            cure = "Call with_timestamps() on its source."
            if counted := self._counted_with_rest():
                cure = (
                    f'Leave rest="emit" out of the window of {counted!r}: at the end of the input '
                    "its results come behind the watermark, and would be late."
                )
            raise PipelineError(
                f"{what} needs event time.", job=self._builder.job, stage=name, cure=cure
            )
        return self._time

    def _counted_with_rest(self) -> str | None:
        """Name of the window by count with `rest="emit"` whose results come here, if any."""
        pending = [self._node]
        while pending:
            node = self._builder.nodes[pending.pop()]
            if isinstance(node, CountWindowNode) and node.rest == "emit" and node.time is not None:
                return node.name
            pending.extend(node.upstream)
        return None

    def _is_read_just_now(self, upstream: Sequence[str]) -> bool:
        """Whether all rows come directly from one source with ingestion time, which never
        decreases, and without `max_lull`, under which the watermark may pass later rows."""
        found: set[TimestampsNode] = set()
        pending = list(upstream)
        while pending:
            node = self._builder.nodes[pending.pop()]
            if isinstance(node, StatefulNode):
                return False
            if isinstance(node, TimestampsNode):
                found.add(node)
            else:
                pending.extend(node.upstream)
        times = [node.timestamps for node in found]
        return len(times) == 1 and times[0].of_ingestion and times[0].max_lull_ms == 0

    def _refusal(
        self, message: str, cure: str | None = None, *, stage: str | None = None
    ) -> PipelineError:
        """
        Args:
            stage: the stage at fault; by default this one.
        """
        return PipelineError(message, job=self._builder.job, stage=stage or self._node, cure=cure)

    def _refuse_others(self, others: Sequence[object], name: str | None) -> None:
        """Refuses what is no stage, and stages of other pipelines: their node names may denote
        other nodes here."""
        for other in others:
            if not isinstance(other, Point):
                raise self._refusal(
                    f"a {type(other).__name__} is not a stage.",
                    "Pass stages, one by one; enrich() adds the columns of a table.",
                    stage=name,
                )
            if other._builder is not self._builder:
                mine, its = self._builder.job, other._builder.job
                raise PipelineError(
                    f"{self._node!r} is of the pipeline {mine!r}, and {other._node!r} is of "
                    f"{'another one' if its == mine else 'the pipeline'} {its!r}.",
                    job=mine,
                    stage=name,
                    cure="Read both streams in one pipeline: call read_from() on the same object.",
                )
