"""What runs inside Spark tasks: the stage task, the sink task, the restore task.

Everything here is called from `mapInArrow`: Arrow batches in, Arrow batches out, and one ack per
(vertex, shard). A task may run twice; whatever it writes is named by attempt and inert until the
coordinator has decided that the ack counts. Executors import this module, never Dagster.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.failpoint import fail_point
from dagster_jet.engine.connector import Sink, SinkWriter, TransactionId
from dagster_jet.engine.state import RunFolder, delete_runs
from dagster_jet.errors import StoreError
from dagster_jet.processors.window import WINDOW_END_MS, WindowAggregate
from dagster_jet.snapshot.chunks import (
    PARTITION_COLUMN,
    ChunkSetName,
    filter_partitions,
    needs_base,
    read_chain,
    superseded,
    turn,
    write_chunk_set,
)
from dagster_jet.snapshot.manifest import Ack, ChunkSet, Run, ShardState
from dagster_jet.store import StoreHandle

ACK_COLUMN = "__ack"
SHARD_COLUMN = "__shard"
ACK_SCHEMA = pa.schema([(ACK_COLUMN, pa.binary())])


def ack_batch(ack: Ack) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([ack.to_bytes()], pa.binary())], schema=ACK_SCHEMA)


def shard_of(partition: int, shard_count: int) -> int:
    """The shard that owns a logical partition; the same expression runs in the JVM."""
    return partition % shard_count


def owned_partitions(shard: int, shard_count: int, partition_count: int) -> range:
    return range(shard, partition_count, shard_count)


@dataclass(frozen=True)
class Barrier:
    """What an epoch's tasks need to know about the epoch."""

    job: str
    line: int
    execution_id: int
    epoch_id: int
    snapshot_id: int | None
    work_dir: str
    partition_count: int
    store: StoreHandle | None
    """Present when the epoch ends in a snapshot."""

    def transaction(self, sink: str, shard: int, attempt: str) -> TransactionId:
        return TransactionId(
            self.job, sink, self.line, self.execution_id, self.epoch_id, shard, attempt
        )

    def chunk_map_name(self) -> str:
        return f"jobs/{self.job}/state"


def _attempt() -> str:
    """Unique among all attempts of all tasks of an execution."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.taskAttemptId() if context is not None else os.getpid()
    return f"{number}.{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True)
class SinkTask:
    """Writes the rows of one sink in one epoch."""

    barrier: Barrier
    sink_name: str
    sink: Sink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        shard = context.partitionId() if context is not None else 0
        attempt = _attempt()
        writer = self.sink.open_writer(self.barrier.transaction(self.sink_name, shard, attempt))
        rows = _write_all(writer, batches)
        artifacts = writer.prepare()
        yield ack_batch(
            Ack(self.sink_name, shard, attempt, rows_in=rows, rows_out=rows, artifacts=artifacts)
        )


def _write_all(writer: SinkWriter, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    try:
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
    except BaseException:
        writer.abort()
        raise
    return rows


@dataclass(frozen=True)
class StageTask:
    """One stateful stage in one epoch: merge what arrived, close windows, save at a barrier."""

    barrier: Barrier
    vertex: str
    operator: WindowAggregate
    shard_count: int
    closed_end_ms: int | None
    """Windows up to this end were emitted by earlier epochs: their rows are late."""
    closing_end_ms: int | None
    """Windows up to this end are emitted by this epoch."""
    shards: tuple[ShardState, ...]
    result_schema: pa.Schema
    input_schema: pa.Schema
    sinks: tuple[tuple[str, Sink], ...] = ()
    """Sinks that take the results right here, without another hop."""
    passes_on: bool = False
    """Somebody else downstream reads the results too."""
    owns_all: bool = False
    """One task drives all shards: cheaper while there is little to do."""
    has_input: bool = True
    obsolete: tuple[str, ...] = field(default=(), repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fail_point("stage.before")
        delete_runs(self.obsolete)
        attempt = _attempt()
        table = self._read(batches)
        writers = [
            (name, sink.open_writer(self.barrier.transaction(name, self._owned(table)[0], attempt)))
            for name, sink in self.sinks
        ]
        written = 0
        for shard in self._owned(table):
            ack, results = self._run_shard(shard, self._rows_of(table, shard), attempt)
            for batch in results.to_batches():
                for _, writer in writers:
                    writer.write(batch)
                written += batch.num_rows
                if self.passes_on and batch.num_rows:
                    yield self._with_ack(batch, None)
            yield self._ack_row(ack)
        for name, writer in writers:
            artifacts = writer.prepare()
            yield self._ack_row(
                Ack(
                    name,
                    self._owned(table)[0],
                    attempt,
                    rows_in=written,
                    rows_out=written,
                    artifacts=artifacts,
                )
            )
        fail_point("stage.after")

    # --- input and output -----------------------------------------------------------------------

    def _read(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """The epoch's groups with their shard; anchor rows have a shard and nothing else."""
        schema = self.input_schema.append(pa.field(SHARD_COLUMN, pa.int32()))
        if not self.has_input:
            # The rows only say which shard this task is.
            shards = [s for batch in batches for s in batch.column(0).to_pylist()]
            columns = [pa.nulls(len(shards), f.type) for f in self.input_schema]
            return pa.Table.from_arrays([*columns, pa.array(shards, pa.int32())], schema=schema)
        if not self.owns_all:
            return _as_table(batches, schema)
        table = _as_table(batches, self.input_schema)
        partition, count = table.column(PARTITION_COLUMN), pa.scalar(self.shard_count, pa.int32())
        shard = pc.subtract(partition, pc.multiply(pc.divide(partition, count), count))
        return table.append_column(schema.field(SHARD_COLUMN), shard)

    def _owned(self, table: pa.Table) -> list[int]:
        if self.owns_all:
            return list(range(self.shard_count))
        return sorted(set(table.column(SHARD_COLUMN).to_pylist()))

    def _rows_of(self, table: pa.Table, shard: int) -> pa.Table:
        mine = pc.equal(table.column(SHARD_COLUMN), shard)
        # Anchor rows, which only say that the shard exists, have no partition.
        data = pc.is_valid(table.column(PARTITION_COLUMN))
        return table.filter(pc.and_(mine, data)).drop_columns([SHARD_COLUMN])

    def _ack_row(self, ack: Ack) -> pa.RecordBatch:
        if not self.passes_on:
            return ack_batch(ack)
        nulls = [pa.nulls(1, f.type) for f in self.result_schema]
        row = pa.RecordBatch.from_arrays(nulls, schema=self.result_schema)
        return self._with_ack(row, ack.to_bytes())

    def _with_ack(self, batch: pa.RecordBatch, ack: bytes | None) -> pa.RecordBatch:
        column = pa.array([ack] * batch.num_rows, pa.binary())
        return pa.RecordBatch.from_arrays(
            [*batch.columns, column], schema=self.result_schema.append(ACK_SCHEMA.field(0))
        )

    # --- one shard ------------------------------------------------------------------------------

    def _run_shard(self, shard: int, arrived: pa.Table, attempt: str) -> tuple[Ack, pa.Table]:
        state, operator, closed = self.shards[shard], self.operator, self.closed_end_ms
        runs = RunFolder(
            folder=Path(self.barrier.work_dir) / self.vertex,
            prefix=f"{shard}-{self.barrier.epoch_id}-{attempt}",
            vertex=self.vertex,
            time_column=WINDOW_END_MS,
        )
        rows_in, groups = _total_rows(arrived), arrived.num_rows
        arrived, late = operator.split_late(arrived, closed)
        results = self.result_schema.empty_table()
        now_closed = closed
        if self.closing_end_ms is not None and self.closing_end_ms != closed:
            now_closed = self.closing_end_ms
            due = [run for run in (*state.saved, *state.unsaved) if _is_due(run, now_closed)]
            closing, arrived = operator.split_closed(arrived, now_closed)
            stored = [
                operator.split_closed(table, now_closed)[0]
                for table in runs.alive(runs.read(due), closed)
            ]
            merged = operator.merge([closing, *stored])
            results = operator.finish(merged, self.result_schema)
        saved = runs.drop_dead(state.saved, now_closed)
        unsaved = runs.drop_dead(state.unsaved, now_closed)
        chunk_set, error, dropped = None, None, 0
        if self.barrier.snapshot_id is None:
            unsaved = (*unsaved, *runs.write(operator.merge([arrived])))
            unsaved = runs.compact(unsaved, operator.merge, now_closed)
        else:
            delta = operator.merge([arrived, *runs.alive(runs.read(unsaved), now_closed)])
            runs.obsolete.extend(run.path for run in unsaved)
            unsaved = runs.write(delta)
            saved = runs.compact(saved, operator.merge, now_closed)
            try:
                chunk_set, dropped = self._save(shard, delta, saved, runs, attempt, now_closed)
            except (StoreError, OSError) as failure:
                error = str(failure)
        ack = Ack(
            vertex=self.vertex,
            shard=shard,
            attempt=attempt,
            rows_in=rows_in,
            rows_out=results.num_rows,
            late=late,
            groups=groups,
            saved=saved,
            unsaved=unsaved,
            obsolete=tuple(runs.obsolete),
            chunk_set=chunk_set,
            chain_dropped=dropped,
            snapshot_error=error,
        )
        return ack, results

    def _save(
        self,
        shard: int,
        delta: pa.Table,
        saved: tuple[Run, ...],
        runs: RunFolder,
        attempt: str,
        closed_end_ms: int | None,
    ) -> tuple[ChunkSet | None, int]:
        """Writes what changed since the last snapshot, and in full what has its turn."""
        chain = self.shards[shard].chain
        assert self.barrier.snapshot_id is not None and self.barrier.store is not None
        if delta.num_rows == 0 and chain:
            return None, 0
        owned = owned_partitions(shard, self.shard_count, self.barrier.partition_count)
        sequence = chain[-1].sequence + 1 if chain else 0
        is_base = needs_base(chain, delta.num_rows + sum(run.rows for run in saved))
        full = [p for p in owned if is_base or turn(p, sequence)]
        old = [filter_partitions(t, full) for t in runs.alive(runs.read(saved), closed_end_ms)]
        table = self.operator.merge([delta, *old])
        chunk_set = write_chunk_set(
            self.barrier.store.map(self.barrier.chunk_map_name()),
            ChunkSetName(
                self.vertex, self.barrier.snapshot_id, self.barrier.execution_id, shard, attempt
            ),
            table,
            full,
            sequence=sequence,
            is_base=is_base,
            partition_count=self.barrier.partition_count,
        )
        return chunk_set, superseded(chain, sequence)


def _as_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches under `schema`: Spark's own differs in nullability and metadata."""
    return pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in batches], schema
    )


def _total_rows(table: pa.Table) -> int:
    from dagster_jet.processors.window import ROW_COUNT

    return pc.sum(table.column(ROW_COUNT)).as_py() or 0


def _is_due(run: Run, closed_end_ms: int) -> bool:
    return run.earliest_ms is None or run.earliest_ms <= closed_end_ms


@dataclass(frozen=True)
class RestoreItem:
    """One shard to bring back: which chains to read it from."""

    vertex: str
    shard: int
    operator: WindowAggregate
    chains: tuple[tuple[ChunkSet, ...], ...]
    old_shard_count: int
    new_shard_count: int
    closed_end_ms: int | None


@dataclass(frozen=True)
class RestoreTask:
    """Reads shards back from the store, by partition, at whatever parallelism."""

    barrier: Barrier
    items: tuple[RestoreItem, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = _attempt()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield ack_batch(self._restore(self.items[number], attempt))

    def _restore(self, item: RestoreItem, attempt: str) -> Ack:
        fail_point("restore.before")
        assert self.barrier.store is not None
        count = self.barrier.partition_count
        wanted = frozenset(owned_partitions(item.shard, item.new_shard_count, count))
        store = self.barrier.store.map(self.barrier.chunk_map_name())
        tables = []
        for chain in item.chains:
            table = read_chain(
                store, chain, vertex=item.vertex, partition_count=count, wanted=wanted
            )
            if table is not None:
                tables.append(table)
        runs = RunFolder(
            folder=Path(self.barrier.work_dir) / item.vertex,
            prefix=f"restored-{item.shard}-{attempt}",
            vertex=item.vertex,
            time_column=WINDOW_END_MS,
        )
        saved: tuple[Run, ...] = ()
        if tables:
            saved = runs.write(item.operator.merge(runs.alive(tables, item.closed_end_ms)))
        fail_point("restore.after")
        if item.old_shard_count == item.new_shard_count:
            return Ack(item.vertex, item.shard, attempt, saved=saved)
        # Another division: the next snapshot writes this shard's state anew, as a base.
        return Ack(item.vertex, item.shard, attempt, unsaved=saved)


def restored_state(ack: Ack, chain: tuple[ChunkSet, ...]) -> ShardState:
    """What the coordinator holds of a shard after `RestoreTask`."""
    return replace(ShardState(), saved=ack.saved, unsaved=ack.unsaved, chain=chain)
