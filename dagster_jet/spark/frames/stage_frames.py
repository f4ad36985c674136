"""A stateful stage in one epoch: its input by shard, its task, and what comes out, kind by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.operators.window_results import IS_EARLY
from dagster_jet.spark.epoch_contract import EpochInput
from dagster_jet.spark.frames.observations import Observations
from dagster_jet.spark.frames.shared import SharedFrames
from dagster_jet.spark.planning.wiring import StageWiring
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.barrier import ACK_COLUMN
from dagster_jet.spark.tasks.stage_task import DEAD_LETTER_COLUMN, StageTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class StageFrames:
    """What comes out of a stage in one epoch; None where nobody reads it, or there is none."""

    acks: DataFrame
    results: DataFrame | None = None
    early: DataFrame | None = None
    """Early results of windows."""
    dead_letters: DataFrame | None = None


def stage_frames(
    wiring: StageWiring,
    inputs: Sequence[DataFrame | None],
    epoch: EpochInput,
    runtime: SparkRuntime,
    shared: SharedFrames,
) -> StageFrames:
    """
    Args:
        inputs: None where the epoch has no rows; the stage still emits, and saves its state.
    """
    source = wiring.plan.frame(inputs)
    given = epoch.stages[wiring.spec.vertex]
    task = StageTask(
        epoch.barrier,
        wiring.spec,
        given,
        owns_all=epoch.few_groups,
        has_input=source is not None,
    )
    by_shard = _by_shard(source, epoch, runtime)
    out = by_shard.mapInArrow(task, wiring.output_type)
    if not wiring.is_read:
        return StageFrames(acks=out)
    out = shared.add(out)
    acks = out.where(F.col(ACK_COLUMN).isNotNull()).select(ACK_COLUMN)
    out = out.where(F.col(ACK_COLUMN).isNull()).drop(ACK_COLUMN)
    dead_letters = early = None
    if wiring.spec.passes_dead_letters:
        is_dead = F.col(DEAD_LETTER_COLUMN).isNotNull()
        dead_letters = out.where(is_dead).select(f"{DEAD_LETTER_COLUMN}.*")
        out = out.where(~is_dead).drop(DEAD_LETTER_COLUMN)
    if given.early:
        early = out.where(IS_EARLY)
        out = out.where(f"NOT {IS_EARLY}")
    return StageFrames(acks, out if wiring.spec.passes_on else None, early, dead_letters)


def take_out_late(
    wiring: StageWiring,
    inputs: Sequence[DataFrame | None],
    before_ms: int,
    shared: SharedFrames,
    observations: Observations,
) -> tuple[list[DataFrame | None], dict[int, DataFrame]]:
    """The inputs without what the watermark has passed, which is counted; by input, what a sink
    wants of that."""
    stage, in_time, late_rows = wiring.spec.vertex, list(inputs), {}
    for ordinal, rows in enumerate(inputs):
        if rows is None or not wiring.takes_out_late(ordinal):
            continue
        # A row without event time is neither late nor in time: the operator is to refuse it.
        late = F.coalesce(wiring.plan.late[ordinal](before_ms), F.lit(False))
        if ordinal in wiring.late_inputs:
            late_rows[ordinal] = shared.add(rows).where(late)
        in_time[ordinal] = observations.count_late(stage, ordinal, rows, late).where(~late)
    return in_time, late_rows


def _by_shard(source: DataFrame | None, epoch: EpochInput, runtime: SparkRuntime) -> DataFrame:
    """A stage's input, one Spark partition per shard (or one for all shards)."""
    if not epoch.few_groups:
        placement = runtime.placement
        return placement.shards() if source is None else placement.by_shard(source)
    if source is None:
        return runtime.session.range(0, 1, 1, 1).select(F.col("id").cast("int"))
    return source.coalesce(1)
