"""The frames of one epoch, node by node; nothing runs here, but tables to enrich with are read.

    source frames -> stateless frames (Catalyst fuses them) -> partial aggregates in the JVM
      -> one task per shard: merge with state, close windows, write to sinks, save -> acks

All branches end in frames of acks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.connectors.contract import SOURCE_PARTITION_COLUMN, Partitioned, SourceFrame
from dagster_jet.pipeline.graph import (
    EnrichNode,
    MergeNode,
    Node,
    SinkNode,
    SourceNode,
    TimestampsNode,
    TransformNode,
)
from dagster_jet.pipeline.stateful import StatefulNode
from dagster_jet.spark.epoch_contract import EpochInput
from dagster_jet.spark.frames.observations import Observations
from dagster_jet.spark.frames.shared import SharedFrames
from dagster_jet.spark.frames.stage_frames import StageFrames, stage_frames, take_out_late
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.planning.stateless import (
    enriched,
    merged,
    planning_of,
    transformed,
    with_ingestion_time,
)
from dagster_jet.spark.planning.wiring import ACK_TYPE
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.sink_task import SinkTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EpochFrames:
    """The frames of one epoch of a plan."""

    def __init__(self, plan: ExecutionPlan, epoch: EpochInput, runtime: SparkRuntime) -> None:
        self._plan, self._epoch, self._runtime = plan, epoch, runtime
        self.observations = Observations()
        self.shared = SharedFrames()
        self.written_sinks: dict[str, DataFrame | None] = {}
        """What each sink was given; None where the stage's own task writes."""
        self._frames: dict[tuple[str, bool], DataFrame | None] = {}
        """By node, and whether they are early results."""
        self._whole: dict[str, DataFrame] = {}
        """The same frames with the column of the source's partition."""
        self._sources: dict[str, SourceFrame] = {}
        self._stages: dict[str, StageFrames] = {}
        self._late: dict[tuple[str, int], DataFrame] = {}
        """By stage and input."""

    def acks(self) -> list[DataFrame]:
        """The frames whose union is the epoch's one action."""
        return [frame for node in self._plan.graph for frame in self._acks_of(node)]

    def release(self) -> None:
        self.shared.release()

    def _acks_of(self, node: Node) -> list[DataFrame]:
        if isinstance(node, SinkNode):
            return self._sink_acks(node)
        if isinstance(node, StatefulNode):
            self._frame(node)
            return [self._stages[node.name].acks]
        return []

    # --- nodes ----------------------------------------------------------------------------------

    def _frame(self, node: Node, *, early: bool = False) -> DataFrame | None:
        """The rows of this epoch at `node`; None if there certainly are none.

        Args:
            early: of these, instead, what comes from early results of windows. Transforms are
                applied to them on their own, so that they get to sinks, but into no state: that
                would count them besides the final rows.
        """
        key = node.name, early
        if key not in self._frames:
            with planning_of(self._plan.job, node.name):
                frame = self._make(node, early)
            if frame is not None and node.name in self._plan.shared:
                frame = self.shared.add(frame)
            if frame is not None and node.name in self._plan.partition_columns:
                self._whole[node.name] = frame
                frame = frame.drop(SOURCE_PARTITION_COLUMN)
            self._frames[key] = frame
        return self._frames[key]

    def _input(self, name: str, early: bool = False) -> DataFrame | None:
        return self._frame(self._plan.graph[name], early=early)

    def _make(self, node: Node, early: bool) -> DataFrame | None:
        match node:
            case SourceNode():
                return None if early else self._source(node)
            case TimestampsNode():
                # They are of windows that have not ended: no watermark may move by them.
                return None if early else self._timestamps(node)
            case StatefulNode():
                if early:
                    self._frame(node)
                    return self._stages[node.name].early
                return self._stateful(node)
            case SinkNode():
                return None
            case MergeNode():
                inputs = [self._input(name, early) for name in node.upstream]
                known = [frame for frame in inputs if frame is not None]
                return merged(known) if known else None
            case TransformNode():
                return self._transform(node, early)
            case EnrichNode():
                frame = self._input(node.upstream[0], early)
                if frame is None:
                    return None
                columns = self._plan.stream_columns[node.name]
                return enriched(node, frame, self._runtime.tables.frame(node, columns))

    def _source(self, node: SourceNode) -> DataFrame | None:
        split = self._epoch.splits.get(node.name)
        if split is None:
            return None
        reader = self._runtime.readers[node.name]
        source = self._sources[node.name] = reader.frame(self._runtime.session, split)
        if source.shared is not None:
            self.shared.add(source.shared)
        rows = source.rows
        if isinstance(reader, Partitioned) and node.name not in self._plan.partition_columns:
            rows = rows.drop(SOURCE_PARTITION_COLUMN)
        if node.name in self._plan.counted_sources:
            rows = self.observations.count_source(node.name, rows)
        return rows

    def _transform(self, node: TransformNode, early: bool) -> DataFrame | None:
        upstream = node.upstream[0]
        frame = self._input(upstream, early)
        if frame is None:
            return None
        asked = self._plan.partition_columns.get(node.name)
        if asked is None:
            return transformed(self._plan.job, node, frame)
        return transformed(self._plan.job, node, self._whole[upstream], *asked)

    def _timestamps(self, node: TimestampsNode) -> DataFrame | None:
        upstream = node.upstream[0]
        rows = self._input(upstream)
        if rows is None:
            return None
        if node.timestamps.of_ingestion:
            rows = with_ingestion_time(node, rows, self._epoch.ingestion_ms[node.name])
        plan = self._plan.timestamps[node.name]
        if plan.counted_by is not None:
            self.observations.expect_report(node.name, plan.counted_by)
            return rows
        partitions: tuple[str, ...] = ()
        if plan.partitions_of is not None:
            partitions = self._sources[plan.partitions_of].partitions
        if not partitions:
            return self.observations.observe_times(node.name, plan, rows, ())
        whole = self._whole[upstream]
        seen = self.observations.observe_times(node.name, plan, whole, partitions)
        return seen.drop(SOURCE_PARTITION_COLUMN)

    def _stateful(self, node: StatefulNode) -> DataFrame | None:
        wiring, epoch = self._plan.stages[node.name], self._epoch
        inputs = [self._input(name) for name in node.upstream]
        self.written_sinks.update(dict.fromkeys(wiring.own_sinks))
        before_ms = epoch.stages[node.name].before_ms
        if before_ms is not None:
            inputs, late = take_out_late(wiring, inputs, before_ms, self.shared, self.observations)
            self._late.update({(node.name, ordinal): rows for ordinal, rows in late.items()})
        frames = stage_frames(wiring, inputs, epoch, self._runtime, self.shared)
        self._stages[node.name] = frames
        return frames.results

    # --- sinks ----------------------------------------------------------------------------------

    def _sink_acks(self, node: SinkNode) -> list[DataFrame]:
        frame = self._rows_for(node)
        if frame is None:
            return []
        self.written_sinks[node.name] = frame
        task = SinkTask(self._epoch.barrier, node.name, node.sink)
        with planning_of(self._plan.job, node.name):
            rendered = node.sink.render(frame)
        return [rendered.mapInArrow(task, ACK_TYPE)]

    def _rows_for(self, node: SinkNode) -> DataFrame | None:
        """What the sink gets through a task of its own."""
        upstream = self._plan.graph[node.upstream[0]]
        rows = self._frame(upstream)
        stage = self._plan.stages.get(upstream.name)
        if stage is not None and node.name in stage.own_sinks:
            return None
        if node.of_late:
            return self._late.get((upstream.name, node.late_input))
        if node.of_dead_letters:
            if stage is not None:
                return self._stages[upstream.name].dead_letters
            source = self._sources.get(upstream.name)
            return None if source is None else source.dead_letters
        early = None if rows is None else self._frame(upstream, early=True)
        return rows if rows is None or early is None else rows.union(early)
