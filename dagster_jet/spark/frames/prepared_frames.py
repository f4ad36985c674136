"""Frames of small epochs, made once and run again in every epoch of the same kind.

For a thousand rows, making a frame takes longer than running it: functions are pickled, plans
analysed and planned again. Epochs of a job that keeps up differ only in the input of their tasks,
the state and the watermarks, so tasks read these when they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagster_jet.contract import SourceFrame, SplitParameters
from dagster_jet.pipeline.graph import EnrichNode, TransformNode
from dagster_jet.spark.epoch_contract import EpochInput
from dagster_jet.spark.frames.epoch_frames import EpochFrames
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.plans.repeatable import Repeat, repeat
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.epoch_parameters import CurrentSplit, EpochParameters

_KEPT = 16
"""Maximum number of kinds of epochs; with many sources there would be very many."""


@dataclass(frozen=True)
class _Kind:
    """Properties of an epoch on which its frames depend."""

    places: frozenset[tuple[str, int]]
    """Sources with input; with each, the rounded number of partitions to observe."""
    early: frozenset[str]
    """Stages that emit early results."""


class PreparedFrames:
    """Prepared frames of one execution."""

    def __init__(self, plan: ExecutionPlan, runtime: SparkRuntime) -> None:
        self._plan, self._runtime = plan, runtime
        self._is_local = runtime.is_local
        self._can_be = can_be_prepared(plan)
        self._rows_are_read_twice = bool(plan.shared) or any(
            wiring.late_inputs for wiring in plan.stages.values()
        )
        self._kept: dict[_Kind, tuple[EpochFrames, Repeat] | None] = {}
        """None: epochs of this kind need new frames each time."""
        self._enrichments = [node for node in plan.graph if isinstance(node, EnrichNode)]
        self._table_reads = 0
        self._latest_ms: Mapping[str, int] = {}
        """`EpochInput.latest_ms`, which is part of the frames that are kept."""

    def of(self, epoch: EpochInput) -> EpochFrames | None:
        """The frames of an epoch, after its parameters are handed on; None: it needs its own."""
        if not self._can_be or not self._is_small(epoch):
            return None
        splits = self._split_parameters(epoch)
        if splits is None:
            return None
        if not self._has_newest_tables():
            return None
        if self._latest_ms != epoch.latest_ms:
            self._kept.clear()
            self._latest_ms = epoch.latest_ms
        kind = _Kind(
            frozenset((name, _places(split.partitions)) for name, split in splits.items()),
            frozenset(name for name, stage in epoch.stages.items() if stage.early),
        )
        if kind not in self._kept:
            if len(self._kept) == _KEPT:
                return None
            self._kept[kind] = self._made(epoch, dict(kind.places))
        found = self._kept[kind]
        if found is None:
            return None
        frames, how = found
        frames.begin_again(how)
        frames.partitions = {name: split.partitions for name, split in splits.items()}
        what = {name: split.what for name, split in splits.items()}
        parameters = EpochParameters(epoch.barrier, epoch.stages, what, epoch.ingestion_ms)
        parameters.hand_on(self._runtime.session.sparkContext)
        return frames

    def _is_small(self, epoch: EpochInput) -> bool:
        """Whether one task can read its rows, and only its tasks' parameters differ from other
        epochs."""
        return epoch.few_rows and (epoch.few_groups or not self._is_local)

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

    def _made(
        self, epoch: EpochInput, places: Mapping[str, int]
    ) -> tuple[EpochFrames, Repeat] | None:
        sources = self._sources(places)
        if sources is None:
            return None
        frames = EpochFrames(self._plan, epoch, self._runtime, sources)
        action, how = frames.action, Repeat.AS_IT_IS
        if action is not None:
            found = repeat(
                action,
                several_readers=self._rows_are_read_twice,
                exchanges=not self._is_local,
                caches=frames.shared.frames,
            )
            frames.release()
            if found is None:
                return None
            how = found
        return frames, how

    def _sources(self, places: Mapping[str, int]) -> Mapping[str, SourceFrame] | None:
        frames = {}
        for name, partitions in places.items():
            reader = self._runtime.readers[name]
            frame = reader.prepared_frame(self._runtime.session, CurrentSplit(name), partitions)
            if frame is None:
                return None
            frames[name] = frame
        return frames


def _places(partitions: Sequence[str]) -> int:
    """Rounded up to a power of two, so that there are few kinds."""
    return 1 << (len(partitions) - 1).bit_length() if partitions else 0


def can_be_prepared(plan: ExecutionPlan) -> bool:
    """Whether the frames of the plan contain nothing that differs between epochs."""
    # Else a function of the user makes the frame, and may read the clock or a table.
    return all(node.is_constant for node in plan.graph if isinstance(node, TransformNode))
