"""A shard of a stateful stage in one epoch: its step, and at a barrier saving its state."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from dagster_jet.errors import StoreError
from dagster_jet.operators.lateness import leave_out_late
from dagster_jet.operators.operator import Step, StepInput, merge_whole
from dagster_jet.snapshot.manifest import Ack, Arrived, ChunkSet
from dagster_jet.spark.tasks.barrier import Barrier, saving_folder
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.spark.tasks.state_save import StateSave
from dagster_jet.state import upload as saving
from dagster_jet.state.merging import is_worth_merging
from dagster_jet.state.runs import MERGE_FAN_IN, RunFolder, RunState


@dataclass(frozen=True)
class ShardRun:
    """Result of one shard in an epoch; its state may still be uploading."""

    step: Step
    ack: Ack
    """Ack without the results of saving."""
    saving: Future[tuple[ChunkSet | None, int]] | None
    """Save to wait for in the task; None also if it continues without the task."""

    def with_late(self, late: int) -> ShardRun:
        """Adds rows that were left out as late before the step."""
        ack = replace(self.ack, rows_in=self.ack.rows_in + late, late=self.ack.late + late)
        return replace(self, ack=ack)

    def with_event_time(self, arrived: tuple[Arrived, ...], watermark_ms: int | None) -> ShardRun:
        """Adds the statistics of the task's input, and the watermark that they have advanced."""
        return replace(self, ack=replace(self.ack, arrived=arrived, watermark_ms=watermark_ms))

    def with_work(self, seconds: float) -> ShardRun:
        """Sets the duration of the step and its surrounding work."""
        return replace(self, ack=replace(self.ack, work_ms=round(seconds * 1000, 2)))

    def acked(self) -> Ack:
        """Waits until the state is saved or has failed; then the ack has the error."""
        if self.saving is None:
            return self.ack
        began = time.monotonic()
        try:
            chunk_set, dropped = self.saving.result()
        except (StoreError, OSError) as failure:
            return replace(self.ack, snapshot_error=str(failure))
        save_ms = round((time.monotonic() - began) * 1000, 2)
        return replace(self.ack, chunk_set=chunk_set, chain_dropped=dropped, save_ms=save_ms)


@dataclass(frozen=True)
class StageTask:
    """Operator of one stage in one epoch, in one task.

    At a barrier a shard's state is saved while its results go to their readers, and while the
    task's next shard takes its step: half of the time of saving is waiting for disks and servers.
    With `barrier.saves_beside`, a small state is saved beside the next epoch, too.
    """

    barrier: Barrier
    stage: StageSpec
    given: StageInput

    @property
    def shard_count(self) -> int:
        return len(self.given.shards)

    def refuse(self, shard: int, attempt: str) -> ShardRun:
        """Runs no step, because rows have no event time. The driver refuses the epoch: it knows the
        rows' source."""
        operator = self.stage.operator
        nothing = Step(operator.result_schema.empty_table(), operator.state_schema.empty_table(), 0)
        return ShardRun(nothing, Ack(self.stage.vertex, shard, attempt), None)

    def run_shard(
        self, shard: int, arrived: tuple[pa.Table, ...], attempt: str, savers: Executor
    ) -> ShardRun:
        """Runs one step. A crash inside leaves run files and chunks without references."""
        stage, given, operator = self.stage, self.given, self.stage.operator
        state = given.shards[shard]
        late = 0
        if stage.leaves_out_late:
            (rows,) = arrived
            rows, late = leave_out_late(rows, given.before_ms)
            arrived = (rows,)
        if stage.statistics_columns:
            names = [f.name for f in stage.statistics_columns]
            arrived = tuple(table.drop_columns(names) for table in arrived)
        runs = RunFolder(
            folder=self.barrier.run_folder(stage.vertex),
            prefix=f"{shard}-{self.barrier.epoch_id}-{attempt}",
            vertex=stage.vertex,
            time_column=operator.time_column,
        )
        with self.barrier.job_context(stage.vertex).entered() as context:
            step = operator.step(
                StepInput(
                    arrived,
                    given.before_ms,
                    given.now_ms,
                    version=self.barrier.epoch_id,
                    expired_until_ms=given.expired_until_ms,
                    shard=shard,
                    shard_count=self.shard_count,
                    early=given.early,
                    fencing_token=self.barrier.fencing_token,
                    guarantee=self.barrier.guarantee,
                ),
                RunState(runs, operator, state, given.expired_until_ms),
            )
            context.metrics.end()
        expired = operator.expired_until(given.now_ms)
        saved = runs.drop_expired(state.saved, expired)
        unsaved = runs.drop_expired(state.unsaved, expired)
        if given.clock_ms is not None and step.rows_in == 0:
            # An epoch for a timer: the driver must not run another one for a timer that is over.
            saved, unsaved = runs.tightened(saved, expired), runs.tightened(unsaved, expired)
        merge_whole_keys = partial(merge_whole, operator)
        waits, goes_on = None, None
        if self.barrier.snapshot_id is None:
            unsaved = (*unsaved, *runs.write(step.delta))
            # Saved runs are older, and the store may have state that is in no run any more.
            is_all = not (state.saved or state.deciding or state.chain)
            merge_all = merge_whole_keys if is_all else None
            unsaved = runs.compact(unsaved, operator.merge, expired, merge_all=merge_all)
            saved = runs.compact(saved, operator.merge, expired, merge_all=merge_whole_keys)
        else:
            changed = [step.delta, *runs.read(unsaved)]
            # Usually done in an epoch without a snapshot; here only if there are too few of those.
            saved = runs.compact(
                saved, operator.merge, expired, merge_all=merge_whole_keys, fan_in=2 * MERGE_FAN_IN
            )
            merges = is_worth_merging(changed, operator.merge)
            if merges:
                runs.obsolete.extend(run.path for run in unsaved)
                unsaved = runs.write_parts(runs.merged(changed, operator.merge, expired))
                changed = runs.read(unsaved)
            save = StateSave(
                self.barrier,
                stage.vertex,
                operator,
                shard,
                self.shard_count,
                attempt,
                state.chain,
                runs,
                changed,
                runs.read(saved),
                expired,
            )
            if save.is_little and self.barrier.saves_beside:
                name = f"{stage.vertex}-{shard}-{self.barrier.snapshot_id}-{attempt}.json"
                goes_on = saving.save_beside(save, saving_folder(self.barrier.work_dir) / name)
            else:
                waits = savers.submit(save)
            if not merges:
                # While the save waits for its disks and servers.
                unsaved = (*unsaved, *runs.write(step.delta))
        ack = Ack(
            vertex=stage.vertex,
            shard=shard,
            attempt=attempt,
            rows_in=step.rows_in,
            rows_out=step.results.num_rows,
            late=step.late,
            rejected=0 if step.rejected is None else step.rejected.num_rows,
            groups=sum(map(operator.groups, arrived)),
            saved=saved,
            unsaved=unsaved,
            obsolete=tuple(runs.obsolete),
            prepared=step.prepared,
            saving=goes_on,
            counted=context.metrics.totals,
        )
        return ShardRun(step, ack, waits).with_late(late)
