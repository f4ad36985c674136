"""Frames of small epochs, made once and run again in every epoch of the same kind.

For a thousand rows, making a frame takes longer than running it: functions are pickled, plans
analysed and planned again. Epochs of a job that keeps up differ only in the input of their tasks,
the state and the watermarks, so tasks read these when they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dagster_jet.contract import SourceFrame, SplitParameters
from dagster_jet.pipeline.graph import EnrichNode, TimestampsNode, TransformNode
from dagster_jet.spark.epoch_contract import EpochInput
from dagster_jet.spark.frames.epoch_frames import EpochFrames
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.plans.repeatable import is_repeatable
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.epoch_parameters import (
    PARAMETERS_PROPERTY,
    CurrentSplit,
    EpochParameters,
)

_Kind = frozenset[tuple[str, int]]
"""Sources with input; with each, the rounded number of partitions to observe."""
_KEPT = 16
"""Maximum number of kinds of epochs; with many sources there would be very many."""


class PreparedFrames:
    """Prepared frames of one execution."""

    def __init__(self, plan: ExecutionPlan, runtime: SparkRuntime) -> None:
        self._plan, self._runtime = plan, runtime
        self._can_be = can_be_prepared(plan)
        self._kept: dict[_Kind, EpochFrames | None] = {}
        """None: epochs of this kind need new frames each time."""
        self._enrichments = [node for node in plan.graph if isinstance(node, EnrichNode)]
        self._table_reads = 0
        self._written: Path | None = None

    def of(self, epoch: EpochInput) -> EpochFrames | None:
        """The frames of an epoch, after writing its parameters; None: the epoch needs its own."""
        if not self._can_be or not _is_small(epoch):
            return None
        splits = self._split_parameters(epoch)
        if splits is None:
            return None
        if not self._has_newest_tables():
            return None
        kind = frozenset((name, _places(split.partitions)) for name, split in splits.items())
        if kind not in self._kept:
            if len(self._kept) == _KEPT:
                return None
            self._kept[kind] = self._made(epoch, dict(kind))
        frames = self._kept[kind]
        if frames is not None:
            frames.partitions = {name: split.partitions for name, split in splits.items()}
            what = {name: split.what for name, split in splits.items()}
            self._pass(EpochParameters(epoch.barrier, epoch.stages, what))
        return frames

    def _has_newest_tables(self) -> bool:
        """Frames are joined with tables as they were read, and Spark keeps their broadcasts. If a
        table is due, the epoch needs its own frames, which read it."""
        tables = self._runtime.tables
        if self._table_reads != tables.reads:
            self._kept.clear()
            self._table_reads = tables.reads
        return not any(map(tables.is_due, self._enrichments))

    def _split_parameters(self, epoch: EpochInput) -> dict[str, SplitParameters] | None:
        splits = {}
        for name, split in epoch.splits.items():
            own = self._runtime.readers[name].split_parameters(split)
            if own is None:
                return None
            splits[name] = own
        return splits

    def _made(self, epoch: EpochInput, places: Mapping[str, int]) -> EpochFrames | None:
        sources = self._sources(places)
        if sources is None:
            return None
        frames = EpochFrames(self._plan, epoch, self._runtime, sources)
        action = frames.action
        if action is None or is_repeatable(action, several_readers=bool(self._plan.shared)):
            return frames
        frames.release()
        return None

    def _sources(self, places: Mapping[str, int]) -> Mapping[str, SourceFrame] | None:
        frames = {}
        for name, partitions in places.items():
            reader = self._runtime.readers[name]
            frame = reader.prepared_frame(self._runtime.session, CurrentSplit(name), partitions)
            if frame is None:
                return None
            frames[name] = frame
        return frames

    def _pass(self, parameters: EpochParameters) -> None:
        before = self._written
        self._written = parameters.write()
        self._runtime.session.sparkContext.setLocalProperty(PARAMETERS_PROPERTY, str(self._written))
        if before is not None and before != self._written:
            before.unlink(missing_ok=True)


def _places(partitions: Sequence[str]) -> int:
    """Rounded up to a power of two, so that there are few kinds."""
    return 1 << (len(partitions) - 1).bit_length() if partitions else 0


def _is_small(epoch: EpochInput) -> bool:
    """Whether one task can run it, and only its tasks' parameters differ from other epochs."""
    early = any(stage.early for stage in epoch.stages.values())
    return epoch.few_rows and epoch.few_groups and not early


def can_be_prepared(plan: ExecutionPlan) -> bool:
    """Whether the frames of the plan contain nothing that differs between epochs."""
    late = (
        plan.stages[head.stage].takes_out_late(head.ordinal)
        for task in plan.by_level.each
        for head in task.fusion.heads
    )
    return not (any(late) or any(map(_is_of_each_epoch, plan.graph)))


def _is_of_each_epoch(node: object) -> bool:
    match node:
        case TransformNode():
            return not node.is_constant  # its function may read the clock or a table
        case TimestampsNode():
            return node.timestamps.of_ingestion
    return False
