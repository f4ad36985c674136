"""A stateful stage in one epoch: one step per shard, its results, and at a barrier its state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import StoreError
from dagster_jet.operators.operator import (
    PARTITION_COLUMN,
    Step,
    StepInput,
    merge_whole,
)
from dagster_jet.operators.user.dead_letters import DEAD_LETTER_SCHEMA
from dagster_jet.snapshot.manifest import Ack, ChunkSet
from dagster_jet.spark.errors import at_stage
from dagster_jet.spark.tasks.barrier import (
    ACK_COLUMN,
    ACK_SCHEMA,
    SHARD_COLUMN,
    Barrier,
    ack_batch,
    new_attempt,
    saving_folder,
)
from dagster_jet.spark.tasks.input_statistics import count_arrived
from dagster_jet.spark.tasks.sink_writers import SinkWriters
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.spark.tasks.state_save import StateSave
from dagster_jet.state import upload as saving
from dagster_jet.state.merging import is_worth_merging
from dagster_jet.state.runs import MERGE_FAN_IN, RunFolder, RunState, delete_runs
from dagster_jet.system.failpoint import fail_point

ORDINAL_COLUMN = "__ordinal"
"""Of a stage with several inputs: which one a row came from."""
DEAD_LETTER_COLUMN = "__dead_letter"
"""Of what a task passes on: a struct of `DEAD_LETTER_SCHEMA`, null in results and acks."""


def input_layout(schemas: tuple[pa.Schema, ...]) -> pa.Schema:
    """One table for all inputs of a stage: partition, ordinal (if there are several), then the
    columns of every input, null in the rows of the others. Columns are found by place."""
    if len(schemas) == 1:
        return schemas[0]
    fields = [pa.field(PARTITION_COLUMN, pa.int32()), pa.field(ORDINAL_COLUMN, pa.int32())]
    for ordinal, schema in enumerate(schemas):
        fields += [f.with_name(f"{ordinal}_{f.name}") for f in schema if f.name != PARTITION_COLUMN]
    return pa.schema(fields)


@dataclass(frozen=True)
class ShardRun:
    """What one shard did in an epoch; its state may still be on its way into the store."""

    step: Step
    ack: Ack
    """Without what saving adds."""
    saving: Future[tuple[ChunkSet | None, int]] | None
    """What the task has to wait for; None too if it goes on without the task."""

    def acked(self) -> Ack:
        """Waits until the state is saved, or is known not to be: then the ack says why."""
        if self.saving is None:
            return self.ack
        try:
            chunk_set, dropped = self.saving.result()
        except (StoreError, OSError) as failure:
            return replace(self.ack, snapshot_error=str(failure))
        return replace(self.ack, chunk_set=chunk_set, chain_dropped=dropped)


@dataclass(frozen=True)
class StageTask:
    """Drives the operator of one stage in one epoch.

    At a barrier a shard's state is saved while its results go to their readers, and while the
    task's next shard takes its step: saving is half waiting for disks and servers. Where
    `barrier.saves_beside`, a little state is saved beside the next epoch, too.
    """

    barrier: Barrier
    stage: StageSpec
    given: StageInput
    owns_all: bool = False
    """One task drives all shards: cheaper while there is little to do."""
    has_input: bool = True

    @property
    def shard_count(self) -> int:
        return len(self.given.shards)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = self.stage
        fail_point("stage.before")
        delete_runs(self.given.obsolete)
        attempt = new_attempt()
        table = self._read(batches)
        owned = self._owned(table)
        results = SinkWriters(self.barrier, stage.sinks, owned[0], attempt)
        dead_letters = SinkWriters(self.barrier, stage.dead_letter_sinks, owned[0], attempt)
        if len(owned) == 1:
            table = _without_anchors(table)
        runs = []
        with ThreadPoolExecutor(saving.AT_ONCE, "jet-save") as savers:
            for shard in owned:
                rows = table if len(owned) == 1 else _of_shard(table, shard)
                with at_stage(stage.vertex):
                    run = self.run_shard(shard, self._by_input(rows), attempt, savers)
                runs.append(run)
                for batch in run.step.results.to_batches():
                    results.write(batch)
                    if stage.passes_on and batch.num_rows:
                        yield self._row(batch.num_rows, results=batch)
                for batch in [] if run.step.rejected is None else run.step.rejected.to_batches():
                    dead_letters.write(batch)
                    if stage.passes_dead_letters and batch.num_rows:
                        yield self._row(batch.num_rows, dead_letters=batch)
            for ack in (*results.prepare(), *dead_letters.prepare()):
                yield self._ack_row(ack)
            for run in runs:
                with at_stage(stage.vertex):
                    ack = run.acked()
                yield self._ack_row(ack)
        fail_point("stage.after")

    # --- input and output -----------------------------------------------------------------------

    def _read(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The epoch's rows with their shard; anchor rows have a shard and nothing else."""
        own = input_layout(self.stage.operator.input_schemas)
        layout = pa.schema([*own, *self.stage.statistics_columns])
        schema = layout.append(pa.field(SHARD_COLUMN, pa.int32()))
        if not self.has_input:
            # The rows only say which shard this task is.
            shards = [s for batch in batches for s in batch.column(0).to_pylist()]
            columns = [pa.nulls(len(shards), f.type) for f in layout]
            return pa.Table.from_arrays([*columns, pa.array(shards, pa.int32())], schema=schema)
        if not self.owns_all:
            return _as_table(batches, schema)
        table = _as_table(batches, layout)
        partition, count = table.column(PARTITION_COLUMN), pa.scalar(self.shard_count, pa.int32())
        shard = pc.subtract(partition, pc.multiply(pc.divide(partition, count), count))
        return table.append_column(schema.field(SHARD_COLUMN), shard)

    def _owned(self, table: pa.Table) -> list[int]:
        if self.owns_all:
            return list(range(self.shard_count))
        return sorted(pc.unique(table.column(SHARD_COLUMN)).to_pylist())

    def _by_input(self, rows: pa.Table) -> tuple[pa.Table, ...]:
        """A shard's rows as the operator takes them."""
        schemas = self.stage.operator.input_schemas
        if len(schemas) == 1:
            return (rows.drop_columns([SHARD_COLUMN]),)
        arrived, first = [], 2
        for ordinal, schema in enumerate(schemas):
            width = len(schema) - 1
            own = rows.select([0, *range(first, first + width)])
            own = own.filter(pc.equal(rows.column(ORDINAL_COLUMN), ordinal))
            arrived.append(pa.Table.from_arrays(own.columns, schema=schema))
            first += width
        return tuple(arrived)

    def _ack_row(self, ack: Ack) -> pa.RecordBatch:
        if not self.stage.passes_on and not self.stage.passes_dead_letters:
            return ack_batch(ack)
        return self._row(1, ack=ack)

    def _row(
        self,
        count: int,
        *,
        results: pa.RecordBatch | None = None,
        dead_letters: pa.RecordBatch | None = None,
        ack: Ack | None = None,
    ) -> pa.RecordBatch:
        """Rows of one of the three kinds; the columns of the others are null."""
        fields = [*self.stage.operator.result_schema]
        columns = [pa.nulls(count, f.type) for f in fields] if results is None else results.columns
        if self.stage.passes_dead_letters:
            kind = pa.struct(DEAD_LETTER_SCHEMA)
            fields.append(pa.field(DEAD_LETTER_COLUMN, kind))
            column = (
                pa.nulls(count, kind) if dead_letters is None else dead_letters.to_struct_array()
            )
            columns = [*columns, column]
        fields.append(ACK_SCHEMA.field(ACK_COLUMN))
        acks = pa.array([None if ack is None else ack.to_bytes()] * count, pa.binary())
        return pa.RecordBatch.from_arrays([*columns, acks], schema=pa.schema(fields))

    # --- one shard ------------------------------------------------------------------------------

    def run_shard(
        self, shard: int, arrived: tuple[pa.Table, ...], attempt: str, savers: Executor
    ) -> ShardRun:
        """One step. A crash inside leaves run files and chunks that nothing names."""
        stage, given, operator = self.stage, self.given, self.stage.operator
        state = given.shards[shard]
        statistics = tuple(map(count_arrived, arrived)) if stage.reports_statistics else ()
        if any(one.rows != one.rows_with_time for one in statistics):
            # The driver refuses the epoch; it knows where the rows come from.
            nothing = Step(
                operator.result_schema.empty_table(), operator.state_schema.empty_table(), 0
            )
            return ShardRun(nothing, Ack(stage.vertex, shard, attempt, arrived=statistics), None)
        if stage.statistics_columns:
            names = [f.name for f in stage.statistics_columns]
            arrived = tuple(table.drop_columns(names) for table in arrived)
        runs = RunFolder(
            folder=self.barrier.run_folder(stage.vertex),
            prefix=f"{shard}-{self.barrier.epoch_id}-{attempt}",
            vertex=stage.vertex,
            time_column=operator.time_column,
        )
        step = operator.step(
            StepInput(
                arrived,
                given.before_ms,
                given.after_ms,
                version=self.barrier.epoch_id,
                shard=shard,
                shard_count=self.shard_count,
                early=given.early,
                fencing_token=self.barrier.fencing_token,
                guarantee=self.barrier.guarantee,
            ),
            RunState(runs, operator, state, given.expired_until_ms),
        )
        expired = operator.expired_until(given.after_ms)
        saved = runs.drop_expired(state.saved, expired)
        unsaved = runs.drop_expired(state.unsaved, expired)
        merge_whole_keys = partial(merge_whole, operator)
        waits, goes_on = None, None
        if self.barrier.snapshot_id is None:
            unsaved = (*unsaved, *runs.write(step.delta))
            # Saved runs are the older ones; and what the store has may be in no run any more.
            is_all = not (state.saved or state.deciding or state.chain)
            merge_all = merge_whole_keys if is_all else None
            unsaved = runs.compact(unsaved, operator.merge, expired, merge_all=merge_all)
            saved = runs.compact(saved, operator.merge, expired, merge_all=merge_whole_keys)
        else:
            changed = [step.delta, *runs.read(unsaved)]
            # Better in an epoch without a snapshot; here only where there are too few of those.
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
                # While the snapshot waits for its disks and servers.
                unsaved = (*unsaved, *runs.write(step.delta))
        ack = Ack(
            vertex=stage.vertex,
            shard=shard,
            attempt=attempt,
            rows_in=step.rows_in,
            rows_out=step.results.num_rows,
            late=step.late,
            rejected=0 if step.rejected is None else step.rejected.num_rows,
            groups=sum(table.num_rows for table in arrived),
            arrived=statistics,
            saved=saved,
            unsaved=unsaved,
            obsolete=tuple(runs.obsolete),
            prepared=step.prepared,
            saving=goes_on,
        )
        return ShardRun(step, ack, waits)


def _of_shard(table: pa.Table, shard: int) -> pa.Table:
    """One shard's rows of several; anchor rows have no partition."""
    mine = pc.equal(table.column(SHARD_COLUMN), shard)
    return table.filter(pc.and_(mine, pc.is_valid(table.column(PARTITION_COLUMN))))


def _without_anchors(table: pa.Table) -> pa.Table:
    """All rows but the anchor: cut around it, because a filter would copy the whole input."""
    partitions = table.column(PARTITION_COLUMN)
    if partitions.null_count == 0:
        return table
    anchors = np.flatnonzero(partitions.is_null().to_numpy()).tolist()
    bounds = pairwise([-1, *anchors, table.num_rows])
    return pa.concat_tables([table.slice(before + 1, to - before - 1) for before, to in bounds])


def _as_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches under `schema`: Spark's own differs in nullability and metadata."""
    return pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in batches], schema
    )
