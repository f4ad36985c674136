"""A task's stages in one epoch: input by shard, the task, and its output by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.operators.window_results import IS_EARLY
from dagster_jet.spark.epoch_contract import EpochInput
from dagster_jet.spark.frames.column_names import map_in_arrow
from dagster_jet.spark.frames.shared import SharedFrames
from dagster_jet.spark.planning.fusing import FusionPlan
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.epoch_parameters import PreparedTask
from dagster_jet.spark.tasks.fused_task import FusedTask
from dagster_jet.spark.tasks.fusion import Fusion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class StageFrames:
    """Output of a stage in one epoch."""

    results: DataFrame
    early: DataFrame | None = None
    """Early results of windows; None in an epoch without any."""


@dataclass(frozen=True)
class FusionFrames:
    """Output of the stages of one task in one epoch."""

    acks: DataFrame
    stages: Mapping[str, StageFrames]
    """Stages whose results are read outside of the task."""
    dead_letters: Mapping[str, DataFrame]
    """By stage, if they are read outside of the task."""


def fusion_frames(
    plan: FusionPlan,
    inputs: Sequence[DataFrame | None],
    epoch: EpochInput,
    runtime: SparkRuntime,
    shared: SharedFrames,
    *,
    is_prepared: bool = False,
) -> FusionFrames:
    """
    Args:
        inputs: input frames of the fusion's heads, in their operators' schemas; None if the epoch
            has no rows: the stage still emits, and saves its state.
        is_prepared: the task serves any epoch: it reads the epoch's parameters when it runs.
    """
    fusion = plan.fusion
    rows = {tag: frame for tag, frame in enumerate(inputs) if frame is not None}
    source = plan.inputs.put(rows)
    task = FusedTask(
        epoch.barrier,
        fusion,
        {stage.vertex: epoch.stages[stage.vertex] for stage in fusion.stages},
        owns_all=epoch.few_groups,
        has_input=source is not None,
    )
    run = PreparedTask(task) if is_prepared else task
    rows_in = _by_shard(source, epoch, runtime)
    out = map_in_arrow(rows_in, run, plan.outputs.type, ", ".join(fusion.by_name))
    if not fusion.outputs.is_one:
        out = shared.add(out)
    return FusionFrames(
        plan.outputs.take(out, Fusion.ack_tag),
        {
            name: _results(
                plan.outputs.take(out, fusion.result_tag(name)), epoch.stages[name].early
            )
            for name in fusion.results_of
        },
        {
            name: plan.outputs.take(out, fusion.dead_letter_tag(name))
            for name in fusion.dead_letters_of
        },
    )


def _results(rows: DataFrame, early: bool) -> StageFrames:
    if not early:
        return StageFrames(rows)
    return StageFrames(rows.where(f"NOT {IS_EARLY}"), rows.where(IS_EARLY))


def _by_shard(source: DataFrame | None, epoch: EpochInput, runtime: SparkRuntime) -> DataFrame:
    """A task's input, one Spark partition per shard (or one for all shards)."""
    if not epoch.few_groups:
        placement = runtime.placement
        return placement.shards() if source is None else placement.by_shard(source)
    if source is None:
        return runtime.session.range(0, 1, 1, 1).select(F.col("id").cast("int"))
    return source.coalesce(1)
