"""Runs the stages of one task in one epoch: rows in, results and acks out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.operator import PARTITION_COLUMN
from dagster_jet.snapshot.manifest import Ack, Arrived
from dagster_jet.spark.tasks.barrier import SHARD_COLUMN, Barrier, ack_batch, new_attempt
from dagster_jet.spark.tasks.epoch_parameters import EpochParameters
from dagster_jet.spark.tasks.fusion import Fusion
from dagster_jet.spark.tasks.input_statistics import InputRef, count_arrived
from dagster_jet.spark.tasks.sink_writers import SinkWriters
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.spark.tasks.stage_task import ShardRun, StageTask
from dagster_jet.state import upload as saving
from dagster_jet.state.runs import delete_runs
from dagster_jet.system.failpoint import fail_point
from dagster_jet.system.own_task import at_stage


@dataclass(frozen=True)
class FusedTask:
    """Function that Spark runs, once per shard or once for all shards.

    A stage's state is saved while later stages take their steps; the task waits for it at its end.
    """

    barrier: Barrier
    fusion: Fusion
    given: Mapping[str, StageInput]
    owns_all: bool = False
    """One task runs all shards: cheaper for little input."""
    has_input: bool = True

    @property
    def shard_count(self) -> int:
        return len(self.given[self.fusion.stages[0].vertex].shards)

    def in_epoch(self, parameters: EpochParameters) -> FusedTask:
        return replace(self, barrier=parameters.barrier, given=parameters.stages)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = new_attempt()
        table = self._read(batches)
        owned = self._owned(table)
        table = _without_anchors(table)
        statistics = self._statistics(table)
        advanced = self._advanced(statistics) if len(owned) == self.shard_count else {}
        passed: dict[str, list[pa.Table]] = {link.source: [] for link in self.fusion.links}
        runs: list[tuple[str, ShardRun]] = []
        with ThreadPoolExecutor(saving.AT_ONCE, "jet-save") as savers, ExitStack() as opened:
            for stage in self.fusion.stages:
                fail_point("stage.before")
                name, given = stage.vertex, self.given[stage.vertex]
                if name in advanced:
                    given = replace(given, after_ms=advanced[name])
                delete_runs(given.obsolete)
                task = StageTask(self.barrier, stage, given)
                began = time.monotonic()
                with at_stage(name):
                    linked, late = self._linked(name, passed)
                shaping_s = time.monotonic() - began
                counted = _of_stage(stage, statistics)
                has_all_times = all(one.rows == one.rows_with_time for one in counted)
                results, dead_letters = (
                    opened.enter_context(SinkWriters(self.barrier, sinks, owned[0], attempt))
                    for sinks in (stage.sinks, stage.dead_letter_sinks)
                )
                for shard in owned:
                    began = time.monotonic() - shaping_s
                    arrived = self._arrived(task, table, linked, shard, alone=len(owned) == 1)
                    with at_stage(name):
                        run = (
                            task.run_shard(shard, arrived, attempt, savers)
                            if has_all_times
                            else task.refuse(shard, attempt)
                        )
                    run, shaping_s = run.with_work(time.monotonic() - began), 0.0
                    run, counted = run.with_event_time(counted, advanced.get(name)), ()
                    if late:
                        run, late = run.with_late(late), 0
                    runs.append((name, run))
                    if name in passed:
                        passed[name].append(run.step.results)
                    yield from self._give(run, results, dead_letters)
                for ack in (*results.prepare(), *dead_letters.prepare()):
                    yield self._ack(ack)
            for name, run in runs:
                with at_stage(name):
                    ack = run.acked()
                yield self._ack(ack)
        for _ in self.fusion.stages:
            fail_point("stage.after")

    # --- input ----------------------------------------------------------------------------------

    def _read(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The epoch's rows with their shard; anchor rows have only a shard."""
        layout = self.fusion.inputs.schema
        schema = layout.append(pa.field(SHARD_COLUMN, pa.int32()))
        if not self.has_input:
            # The rows only carry the shard of this task.
            shards = [s for batch in batches for s in batch.column(0).to_pylist()]
            columns = [pa.nulls(len(shards), f.type) for f in layout]
            return pa.Table.from_arrays([*columns, pa.array(shards, pa.int32())], schema=schema)
        if not self.owns_all:
            return _as_table(batches, schema)
        table = _as_table(batches, layout)
        shard = _shards(table, self.shard_count)
        return table.append_column(schema.field(SHARD_COLUMN), shard)

    def _owned(self, table: pa.Table) -> list[int]:
        if self.owns_all:
            return list(range(self.shard_count))
        owned: list[int] = pc.unique(table.column(SHARD_COLUMN)).to_pylist()
        assert len(owned) == 1, f"the placement gave this task the shards {owned}, expected one"
        return owned

    def _statistics(self, table: pa.Table) -> dict[InputRef, Arrived]:
        """Statistics of the inputs that the task counts."""
        inputs, counted = self.fusion.inputs, self.fusion.counted
        return {
            head: count_arrived(inputs.rows_of(table, tag))
            for tag, head in enumerate(self.fusion.heads)
            if head in counted
        }

    def _advanced(self, statistics: Mapping[InputRef, Arrived]) -> dict[str, int]:
        """Watermarks of stages after the epoch's own rows, all of which are in this task."""
        found = {}
        for stage, given in self.given.items():
            own = given.own_watermark
            after_ms = None if own is None else own.after(statistics)
            if after_ms is not None:
                found[stage] = after_ms if given.after_ms is None else max(after_ms, given.after_ms)
        return found

    def _linked(
        self, stage: str, passed: Mapping[str, list[pa.Table]]
    ) -> tuple[dict[int, pa.Table], int]:
        """By input, the rows from stages of this task; and the number of late rows among them."""
        tables, all_late = {}, 0
        for link in self.fusion.links:
            if link.target.stage == stage:
                results = pa.concat_tables(passed[link.source])
                rows, late = link.shape(results, self.given[stage].before_ms)
                tables[link.target.ordinal] = rows
                all_late += late
        return tables, all_late

    def _arrived(
        self,
        task: StageTask,
        table: pa.Table,
        linked: Mapping[int, pa.Table],
        shard: int,
        *,
        alone: bool,
    ) -> tuple[pa.Table, ...]:
        """A shard's rows in the operator's input schemas."""
        fusion = self.fusion
        own = table if alone else _of_shard(table, shard)
        arrived = []
        for ordinal in range(len(task.stage.operator.input_schemas)):
            if ordinal in linked:
                rows = linked[ordinal]
                mine = pc.equal(_shards(rows, task.shard_count), shard)
                if not alone:
                    rows = rows.filter(mine)
                assert not alone or pc.all(mine).as_py() is not False, "rows of another shard"
            else:
                tag = fusion.heads.index(InputRef(task.stage.vertex, ordinal))
                rows = fusion.inputs.rows_of(own, tag)
            arrived.append(rows)
        return tuple(arrived)

    # --- output ---------------------------------------------------------------------------------

    def _give(
        self, run: ShardRun, results: SinkWriters, dead_letters: SinkWriters
    ) -> Iterator[pa.RecordBatch]:
        """Passes results to the stage's own sinks, and to readers outside of the task."""
        fusion, stage = self.fusion, run.ack.vertex
        for batch in run.step.results.to_batches():
            results.write(batch)
            if stage in fusion.results_of and batch.num_rows:
                yield fusion.outputs.batch(fusion.result_tag(stage), batch)
        for batch in [] if run.step.rejected is None else run.step.rejected.to_batches():
            dead_letters.write(batch)
            if stage in fusion.dead_letters_of and batch.num_rows:
                yield fusion.outputs.batch(fusion.dead_letter_tag(stage), batch)

    def _ack(self, ack: Ack) -> pa.RecordBatch:
        return self.fusion.outputs.batch(Fusion.ack_tag, ack_batch(ack))


def _of_stage(stage: StageSpec, statistics: Mapping[InputRef, Arrived]) -> tuple[Arrived, ...]:
    """Statistics per input of a stage; empty if none is counted."""
    if not stage.counted_inputs:
        return ()
    inputs = range(len(stage.operator.input_schemas))
    return tuple(statistics.get(InputRef(stage.vertex, n), Arrived(0, 0, None)) for n in inputs)


def _shards(table: pa.Table, count: int) -> pa.ChunkedArray:
    """Shard of each row, from its partition."""
    partition, of = table.column(PARTITION_COLUMN), pa.scalar(count, pa.int32())
    return pc.subtract(partition, pc.multiply(pc.divide(partition, of), of))


def _of_shard(table: pa.Table, shard: int) -> pa.Table:
    return table.filter(pc.equal(table.column(SHARD_COLUMN), shard))


def _without_anchors(table: pa.Table) -> pa.Table:
    """Removes anchor rows, which have no partition, by slicing: a filter would copy all input."""
    partitions = table.column(PARTITION_COLUMN)
    if partitions.null_count == 0:
        return table
    anchors = np.flatnonzero(partitions.is_null().to_numpy()).tolist()
    bounds = pairwise([-1, *anchors, table.num_rows])
    return pa.concat_tables([table.slice(before + 1, to - before - 1) for before, to in bounds])


def _as_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Table of the batches in `schema`: Spark's differs in nullability and metadata."""
    return pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in batches], schema
    )
