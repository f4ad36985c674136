"""Advances a stage's watermark by the events of its own epoch, in the task that has all of them.

Elsewhere an epoch's events advance the watermark of the next epoch: a window then waits for the
epoch that reads the event which closes it, and for another one that emits it.

The step is the same as two steps with no rows in the second: rows count first, then windows close.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_jet.dag.watermark import coalesced_minimum
from dagster_jet.snapshot.manifest import Arrived
from dagster_jet.spark.tasks.input_statistics import InputRef

Watermark = tuple[int | None, bool]
"""Watermark in ms, or None if there was none yet, and whether it holds nothing back (idle)."""


@dataclass(frozen=True)
class NodeTime:
    """Event time of a timestamps node before an epoch."""

    counted_by: InputRef
    """The input whose task counts the node's events."""
    lag_ms: int
    delay_ms: int
    """Delay of its events by the stages before the stage that asks."""
    whole: Watermark
    """Over all rows, whatever their partition."""
    partitions: tuple[Watermark, ...] = ()
    """Partitions that the epoch reads, by their index."""
    others: Watermark = (None, True)
    """The coalesced watermark of all other partitions."""

    def after(self, arrived: Arrived) -> Watermark:
        """Returns its watermark after these events, as `WatermarkTracker.source_watermark_ms`."""
        tops = dict(arrived.partition_tops_ms)
        partitions = (self._later(one, tops.get(n)) for n, one in enumerate(self.partitions))
        whole_ms, is_idle = self._later(self.whole, arrived.top_event_ms)
        least, none_active = coalesced_minimum([(whole_ms, True), self.others, *partitions])
        return least, none_active and is_idle

    def _later(self, before: Watermark, top_ms: int | None) -> Watermark:
        if top_ms is None:
            return before
        own_ms = top_ms - self.lag_ms
        return own_ms if before[0] is None else max(before[0], own_ms), False


@dataclass(frozen=True)
class OwnWatermark:
    """Event time of all timestamps nodes of one stage before an epoch."""

    nodes: tuple[NodeTime, ...]
    passed_ms: int | None
    """A watermark that retention has let pass."""

    def after(self, arrived: Mapping[InputRef, Arrived]) -> int | None:
        """Returns the stage's watermark after the epoch's rows, as `WatermarkTracker.watermark_ms`;
        None if there is none, or rows of a node are not among those that have arrived."""
        if any(node.counted_by not in arrived for node in self.nodes):
            return None
        inputs = ((*node.after(arrived[node.counted_by]), node.delay_ms) for node in self.nodes)
        least, _ = coalesced_minimum(
            (None if ms is None else ms - delay_ms, idle) for ms, idle, delay_ms in inputs
        )
        return max((ms for ms in (least, self.passed_ms) if ms is not None), default=None)
