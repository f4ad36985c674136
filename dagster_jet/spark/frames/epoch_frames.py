"""Builds the frames of one epoch, node by node. Runs no job, but reads enrichment tables.

    source frames -> stateless frames (Catalyst fuses them) -> partial aggregates in the JVM
      -> one task per shard: merge with state, close windows, write to sinks, save -> acks

All branches end in frames of acks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from dagster_jet.contract import SOURCE_PARTITION_COLUMN, SourceFrame
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
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.epoch_contract import EpochInput
from dagster_jet.spark.frames.column_names import map_in_arrow
from dagster_jet.spark.frames.fusion_frames import FusionFrames, fusion_frames
from dagster_jet.spark.frames.observations import Observations, Seen
from dagster_jet.spark.frames.shared import SharedFrames
from dagster_jet.spark.planning.as_analysed import check_as_analysed, check_as_declared
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.planning.fusing import FusionPlan
from dagster_jet.spark.planning.stateless import (
    enriched,
    merged,
    planning_of,
    transformed,
    with_ingestion_time,
)
from dagster_jet.spark.planning.wiring import ACK_TYPE, own_sink
from dagster_jet.spark.plans.repeatable import Repeat, again
from dagster_jet.spark.plans.union import union_all
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.epoch_parameters import PreparedTask
from dagster_jet.spark.tasks.epoch_rows import IngestionTime, LateRows
from dagster_jet.spark.tasks.input_statistics import InputRef
from dagster_jet.spark.tasks.sink_task import SinkTask
from dagster_jet.spark.tasks.stage_input import StageInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_MOMENT_COLUMN = "__moment"


class EpochFrames:
    """The frames of one epoch of a plan."""

    def __init__(
        self,
        plan: ExecutionPlan,
        epoch: EpochInput,
        runtime: SparkRuntime,
        prepared: Mapping[str, SourceFrame] | None = None,
    ) -> None:
        """
        Args:
            prepared: by source, frames for the rows of any epoch. The frames here then serve any
                epoch, too: their tasks read the epoch's parameters when they run.
        """
        self._plan, self._epoch, self._runtime = plan, epoch, runtime
        self._prepared = prepared
        self.partitions: Mapping[str, Sequence[str]] = {}
        """By source, `SourceFrame.partitions` of the running epoch, for prepared frames."""
        self._observations = Observations()
        self.shared = SharedFrames(are_planned_again=prepared is not None and not runtime.is_local)
        self.written_sinks: dict[str, DataFrame | None] = {}
        """The rows of each sink; None if the stage's own task writes them."""
        self._own_sinks = {n for stage in plan.stages.values() for n in stage.own_sinks}
        self._frames: dict[tuple[str, bool], DataFrame | None] = {}
        """By node, and whether they are early results."""
        self._whole: dict[str, DataFrame] = {}
        """The same frames with the column of the source's partition."""
        self._sources: dict[str, SourceFrame] = {}
        # Early results go to sinks and not into state: those stages are not fused.
        shows_early = any(stage.early for stage in epoch.stages.values())
        if shows_early:
            self._fusions = plan.one_by_one
        elif epoch.few_groups:
            self._fusions = plan.by_level
        else:
            self._fusions = plan.one_by_one if prepared is None else plan.by_shard
        self._fusion_frames: dict[str, FusionFrames] = {}
        """By the first stage of the fusion."""
        self._late: dict[tuple[str, int], DataFrame] = {}
        """By stage and input."""
        self._first: DataFrame | None = None
        """The action of prepared frames as it was made."""

    @cached_property
    def action(self) -> DataFrame | None:
        """The acks of all tasks; None if the epoch has none."""
        return self._plan_action()

    def _plan_action(self) -> DataFrame | None:
        acked = [frame for node in self._plan.graph for frame in self._acks_of(node)]
        return union_all(acked) if acked else None

    def begin_again(self, how: Repeat) -> None:
        """Makes prepared frames ready for one more epoch, after `release`."""
        if self._first is None:
            self._first = self.action
        self.shared.again()
        if self._first is not None:
            self.action = again(self._first, how)

    def seen(self, acks: Sequence[Ack]) -> Seen:
        """Counts observed by the action, which has returned `acks`."""
        assert self.action is not None
        own = {name: source.partitions for name, source in self._sources.items()}
        return self._observations.seen(self.action, acks, {**own, **self.partitions})

    def release(self) -> None:
        self.shared.release()

    def _acks_of(self, node: Node) -> list[DataFrame]:
        if isinstance(node, SinkNode):
            return self._sink_acks(node)
        if isinstance(node, StatefulNode):
            plan = self._fusions.of(node.name)
            return [self._of_fusion(plan).acks] if plan.name == node.name else []
        return []

    # --- nodes ----------------------------------------------------------------------------------

    def _frame(self, node: Node, *, early: bool = False) -> DataFrame | None:
        """The rows of this epoch at `node`; None if there are certainly none.

        Args:
            early: return early results of windows instead. They are transformed separately, so that
                they reach sinks but no state, which would count them besides the final rows.
        """
        key = node.name, early
        if key not in self._frames:
            with planning_of(self._plan.job, node.name):
                frame = self._make(node, early)
            if frame is not None and node.name in self._plan.shared:
                frame = self._kept(frame)
            if frame is not None and node.name in self._plan.partition_columns:
                self._whole[node.name] = frame
                frame = frame.drop(SOURCE_PARTITION_COLUMN)
            self._frames[key] = frame
        return self._frames[key]

    def _kept(self, frame: DataFrame) -> DataFrame:
        """Shares a frame among several branches. A prepared frame must keep nothing of a run: each
        branch reads its few rows again."""
        return self.shared.add(frame) if self._prepared is None else frame

    def _input(self, name: str, early: bool = False) -> DataFrame | None:
        return self._frame(self._plan.graph[name], early=early)

    def _make(self, node: Node, early: bool) -> DataFrame | None:
        match node:
            case SourceNode():
                return None if early else self._source(node)
            case TimestampsNode():
                # Early results are of windows that have not ended: they must not advance a
                # watermark.
                return None if early else self._timestamps(node)
            case StatefulNode():
                frames = self._of_fusion(self._fusions.of(node.name)).stages.get(node.name)
                if frames is None:
                    return None
                return frames.early if early else frames.results
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
        if self._prepared is None:
            source = reader.frame(self._runtime.session, split)
        else:
            source = self._prepared[node.name]
        self._sources[node.name] = source
        if source.shared is not None and self._prepared is None:
            self.shared.persist(source.shared)
        rows = source.rows
        check_as_declared(self._plan.job, node, rows)
        if reader.is_partitioned and node.name not in self._plan.partition_columns:
            rows = rows.drop(SOURCE_PARTITION_COLUMN)
        if node.name in self._plan.counted_sources:
            rows = self._observations.count_source(node.name, rows)
        return rows

    def _transform(self, node: TransformNode, early: bool) -> DataFrame | None:
        upstream = node.upstream[0]
        frame = self._input(upstream, early)
        if frame is None:
            return None
        asked = self._plan.partition_columns.get(node.name)
        if asked is not None:
            frame = self._whole[upstream]
        result = transformed(self._runtime, node, frame, *(asked or ()))
        if not node.is_constant:
            check_as_analysed(
                self._plan.job,
                node,
                frame,
                result,
                self._plan.frames[node.name],
                keeps_partition=asked is not None,
            )
        return result

    def _timestamps(self, node: TimestampsNode) -> DataFrame | None:
        upstream = node.upstream[0]
        rows = self._input(upstream)
        if rows is None:
            return None
        if node.timestamps.of_ingestion:
            if self._prepared is None:
                rows = with_ingestion_time(node, rows, self._epoch.ingestion_ms[node.name])
            else:
                column = node.timestamps.column
                result = StructType([*rows.schema, StructField(column, TimestampType(), False)])
                rows = map_in_arrow(rows, IngestionTime(node.name, column), result, node.name)
        plan = self._plan.timestamps[node.name]
        if plan.counted_by is not None:
            self._observations.expect_report(node.name, plan.counted_by, plan.partitions_of)
            return rows
        if node.name in self._epoch.latest_ms:
            plan = plan.up_to(self._epoch.latest_ms[node.name])
        source = plan.partitions_of
        if source is None or not self._sources[source].partitions:
            return self._observations.observe_times(node.name, plan, rows, per_partition=False)
        whole = self._whole[upstream]
        seen = self._observations.observe_times(node.name, plan, whole, per_partition=True)
        return seen.drop(SOURCE_PARTITION_COLUMN)

    def _of_fusion(self, plan: FusionPlan) -> FusionFrames:
        """The frames of a task's stages, built once."""
        if plan.name not in self._fusion_frames:
            inputs = [self._head(head) for head in plan.fusion.heads]
            for stage in plan.fusion.stages:
                own_sinks = self._plan.stages[stage.vertex].own_sinks
                self.written_sinks.update(dict.fromkeys(own_sinks))
            self._fusion_frames[plan.name] = fusion_frames(
                plan,
                inputs,
                self._epoch,
                self._runtime,
                self.shared,
                is_prepared=self._prepared is not None,
            )
        return self._fusion_frames[plan.name]

    def _head(self, head: InputRef) -> DataFrame | None:
        """Rows of an input fed by Spark, in the operator's schema."""
        wiring, node = self._plan.stages[head.stage], self._plan.graph[head.stage]
        with planning_of(self._plan.job, node.name):
            upstream = node.upstream[head.ordinal]
            rows = self._input(upstream)
            if rows is not None and wiring.plan.counts_partitions:
                rows = self._whole[self._plan.graph[upstream].upstream[0]]
            given = self._epoch.stages[node.name]
            shapes = wiring.plan.shapes
            if rows is not None and wiring.takes_out_late(head.ordinal):
                if self._prepared is None:
                    rows = self._in_time(head, rows, given)
                else:
                    # The watermark differs between epochs: the stage's task takes late rows out.
                    shapes = wiring.plan.exact_shapes or shapes
                    if head.ordinal in wiring.late_inputs:
                        self._late[head.stage, head.ordinal] = self._late_rows(head, rows)
            return None if rows is None else shapes[head.ordinal](self._gathered(rows))

    def _gathered(self, rows: DataFrame) -> DataFrame:
        """Moves few rows into one task, so that no shuffle follows and a sink writes one file."""
        return rows.coalesce(1) if self._epoch.few_rows else rows

    def _in_time(self, head: InputRef, rows: DataFrame, given: StageInput) -> DataFrame:
        """Removes and counts late rows; they are kept if a sink needs them."""
        if given.before_ms is None:
            return rows
        wiring = self._plan.stages[head.stage]
        # A row without event time is neither late nor on time: the operator refuses it.
        is_late = wiring.plan.late[head.ordinal]
        late = F.coalesce(is_late.condition(given.before_ms, given.expired_until_ms), F.lit(False))
        if head.ordinal in wiring.late_inputs:
            self._late[head.stage, head.ordinal] = self.shared.add(rows).where(late)
        return self._observations.count_late(head.stage, head.ordinal, rows, late).where(~late)

    def _late_rows(self, head: InputRef, rows: DataFrame) -> DataFrame:
        """The late rows of an input in any epoch: a branch of its own, which reads them again."""
        late = self._plan.stages[head.stage].plan.late[head.ordinal]
        with_moment = rows.select("*", late.moment.alias(_MOMENT_COLUMN))
        task = LateRows(head.stage, late.until)
        return map_in_arrow(with_moment, task, rows.schema, head.stage)

    # --- sinks ----------------------------------------------------------------------------------

    def _sink_acks(self, node: SinkNode) -> list[DataFrame]:
        together = self._plan.one_pass.get(node.name, (node,))
        frame = self._rows_for(node) if together[0] is node else None
        if frame is None:
            return []
        owns = tuple(own_sink(self._plan.graph, one) for one in together)
        for own in owns:
            self.written_sinks[own.name] = frame
            if own.dead_letters is not None:
                self.written_sinks[own.dead_letters.name] = frame  # the same task acks both
        rows = self._gathered(frame)
        if len(together) == 1:
            sink = node.sink if owns[0].dead_letters is None else node.sink.with_dead_letters()
            with planning_of(self._plan.job, node.name):
                rows = sink.render(rows)
        task = SinkTask(self._epoch.barrier, owns)
        run = task if self._prepared is None else PreparedTask(task)
        return [map_in_arrow(rows, run, ACK_TYPE, ", ".join(own.name for own in owns))]

    def _rows_for(self, node: SinkNode) -> DataFrame | None:
        """The rows of a sink that has tasks of its own."""
        if node.name in self._own_sinks:
            return None
        upstream = self._plan.graph[node.upstream[0]]
        rows = self._frame(upstream)
        if node.of_late:
            return self._late.get((upstream.name, node.late_input))
        if node.of_dead_letters:
            if isinstance(upstream, SinkNode):
                return None  # its tasks write them
            if isinstance(upstream, StatefulNode):
                frames = self._of_fusion(self._fusions.of(upstream.name))
                return frames.dead_letters[upstream.name]
            source = self._sources.get(upstream.name)
            return None if source is None else source.dead_letters
        early = None if rows is None else self._frame(upstream, early=True)
        return rows if rows is None or early is None else rows.union(early)
