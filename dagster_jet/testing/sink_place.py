"""The place that the clauses of `check_sink` write to, with the calls that the engine makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.contract import CommitContext, Committer, Sink, SinkWriter, TransactionId
from dagster_jet.contract.part import check_is_a
from dagster_jet.errors import Reaction
from dagster_jet.execution.connector_errors import reaction_to
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.testing.sink_rows import SCHEMA, Row, compare, row_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE_S, _PAUSE_S = 20.0, 0.1

MakeSink = Callable[[], Sink]
T = TypeVar("T")
JOB, STAGE = "check_sink", "out"
_TASK = "__task"


@dataclass
class Place:
    """The place that all clauses write to, and the rows that must be visible in it."""

    make_sink: MakeSink
    read: Callable[[], Iterable[Row]]
    spark: SparkSession | None
    several_processes: bool
    outages: Mapping[str, Callable[[], AbstractContextManager[object]]]
    steps: Sequence[str]
    secrets: Sequence[str]
    log_of: Callable[[Row], object] | None
    set_back: Mapping[str, Callable[[], AbstractContextManager[object]]]
    refused: Sequence[Row]
    stage_name: str = STAGE
    expected: dict[int, Row] = field(default_factory=dict)
    compared: dict[int, Row] = field(default_factory=dict)
    """Rows read that were found correct: comparing them again is cheap."""
    epoch_id: int = 0
    execution_id: int = 1
    looks: bool = False
    """True if definitions look at their place (`Definition.at_start`), as at every start."""

    def sink(self) -> Sink:
        made: Any = self.make_sink()
        if self.looks:
            made = made.at_start(JOB, self.stage_name, on_one_host=True)
        sink: Sink = made
        return sink

    def rows(self, count: int, **values: Any) -> list[Row]:
        first = 1 + max(self.expected, default=0) + 100_000 * self.epoch_id
        return [{**row_of(first + n), **values} for n in range(count)]

    def stage(
        self,
        rows: Sequence[Row],
        *,
        shards: int = 1,
        execution_id: int | None = None,
        attempt: str = "a0",
        new_epoch: bool = True,
    ) -> tuple[Artifact, ...]:
        """Phase 1 of an epoch."""
        self.epoch_id += new_epoch
        by = self.execution_id if execution_id is None else execution_id
        rendered = self.rendered(rows)
        found: list[Artifact] = []
        for shard in range(shards):
            mine = pa.array(range(shard, len(rows), shards), pa.int64())
            found += self.written(rendered.take(mine), shard, by, attempt)
        return tuple(found)

    def written(
        self, rows: pa.Table, shard: int, execution_id: int, attempt: str = "a0"
    ) -> tuple[Artifact, ...]:
        """Phase 1 of one task, whose rows have been rendered by the sink."""
        transaction = TransactionId(
            JOB, self.stage_name, 1, execution_id, self.epoch_id, shard, attempt
        )
        writer = self.sink().open_writer(transaction)
        check_is_a(SinkWriter, writer, job=JOB, stage=self.stage_name)
        try:
            for batch in batches_of(rows):
                writer.write(batch)
            return writer.prepare()
        except BaseException:
            writer.abort()
            raise
        finally:
            writer.close()

    def stage_in_tasks(self, rows: Sequence[Row], tasks: int) -> tuple[Artifact, ...]:
        """Phase 1 of an epoch whose rows come in `tasks` tasks, the first of which ends last. The
        artifacts are in the order of the contract."""
        self.epoch_id += 1
        sink, each = self.make_sink(), -(-len(rows) // tasks)
        parts = [
            pa.Table.from_pylist(list(rows[first : first + each]), SCHEMA)
            for first in range(0, len(rows), each)
        ]
        if not sink.takes(SCHEMA):
            parts = self._rendered_in_tasks(parts)
        order = range(len(parts))
        # A writer that produces at once keeps only the order of its own rows.
        held = sink.held() is not None
        found = {
            shard: self.written(parts[shard], shard, self.execution_id)
            for shard in (order if held else reversed(order))
        }
        return tuple(artifact for shard in order for artifact in found[shard])

    def _rendered_in_tasks(self, parts: Sequence[pa.Table]) -> list[pa.Table]:
        from pyspark.sql import functions as F

        assert self.spark is not None, "this sink renders its rows with Spark: give spark="
        frames = [self.spark.createDataFrame(part).coalesce(1) for part in parts]
        frame = self.make_sink().render(reduce(lambda a, b: a.union(b), frames))
        rendered = frame.withColumn(_TASK, F.spark_partition_id()).toArrow()
        task, rows = rendered.column(_TASK), rendered.drop_columns([_TASK])
        return [rows.filter(pc.equal(task, one)) for one in pc.unique(task).to_pylist()]

    def commit(self, artifacts: Collection[Artifact], *, execution_id: int | None = None) -> None:
        """Phase 2, with a new committer."""
        commit(self.sink(), artifacts, self.context(execution_id))

    def has_committed(
        self, artifacts: Collection[Artifact], *, owns_job: bool = False
    ) -> bool | None:
        """Asks the place with a new committer whether the artifacts are committed."""
        committer = self.sink().open_committer(JOB, self.stage_name)
        try:
            return committer.has_committed(artifacts, replace(self.context(), owns_job=owns_job))
        finally:
            committer.close()

    def abort_orphans(self, keep: Collection[str] = (), *, execution_id: int | None = None) -> None:
        committer = self.make_sink().open_committer(JOB, self.stage_name)
        committer.abort_orphans(self.context(execution_id), keep)
        committer.close()

    def context(self, execution_id: int | None = None) -> CommitContext:
        by = self.execution_id if execution_id is None else execution_id
        return CommitContext(JOB, self.stage_name, 1, by, recovering=True)

    def expect(self, *more: Sequence[Row]) -> None:
        """Checks that exactly the committed rows are visible, once, with their values."""
        self.expected.update({row["id"]: row for rows in more for row in rows})
        seen: dict[int, Row] = {}
        for row in self.read():
            assert row["id"] not in seen, f"row {row['id']} is there twice"
            seen[row["id"]] = row
        missing, surplus = self.expected.keys() - seen.keys(), seen.keys() - self.expected.keys()
        assert not missing, f"{len(missing)} rows are missing, such as {min(missing)}"
        assert not surplus, f"{len(surplus)} rows are visible that must not be"
        for number, row in seen.items():
            if self.compared.get(number) != row:
                compare(self.expected[number], row)
                self.compared[number] = row

    def rendered(self, rows: Sequence[Row]) -> pa.Table:
        """The rows as the sink's writers get them, in this order."""
        table, sink = pa.Table.from_pylist(list(rows), SCHEMA), self.make_sink()
        if not rows or sink.takes(SCHEMA):
            return table
        assert self.spark is not None, "this sink renders its rows with Spark: give spark="
        return sink.render(self.spark.createDataFrame(table)).toArrow()


def batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=1_000)
    return batches


def commit(sink: Sink, artifacts: Collection[Artifact], context: CommitContext) -> None:
    """Commits with a new committer."""
    committer = sink.open_committer(context.job, context.sink)
    check_is_a(Committer, committer, job=context.job, stage=context.sink)
    try:
        commit_with(committer, artifacts, context)
    finally:
        committer.close()


def commit_with(
    committer: Committer, artifacts: Collection[Artifact], context: CommitContext
) -> None:
    patiently(lambda: committer.commit(artifacts, context), committer)


def patiently(call: Callable[[], T], committer: Committer) -> T:
    """Commits as a job does: errors to be retried are, for up to half a minute.

    A server may still count the transaction of a connection that has just been closed.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return call()
        except Exception as error:
            is_over = time.monotonic() > until
            if is_over or reaction_to(error, committer) is not Reaction.RETRY:
                raise
        time.sleep(_PAUSE_S)
