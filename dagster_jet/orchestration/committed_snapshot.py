"""Reads a job's newest commit from the store, as its run would have reported it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import JobStateError
from dagster_jet.execution.events import (
    ExecutionStarted,
    SourceProgress,
    StageProgress,
    with_totals,
)
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.manifest import ChunkSet, Counters, Manifest
from dagster_jet.snapshot.record import ExecutionRecord, SnapshotRef

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


@dataclass(frozen=True)
class CommittedSnapshot:
    """A snapshot whose output is in all sinks, but for rows that sinks hold back.

    Attributes:
        record: the job's execution record at the time of the read.
        ref: the snapshot's entry in the record.
        manifest: the snapshot's manifest.
    """

    record: ExecutionRecord
    ref: SnapshotRef
    manifest: Manifest

    @property
    def version(self) -> str:
        """The data version of an asset whose rows this snapshot has changed."""
        return f"{self.ref.snapshot_id}{job_mark(self.record.first_execution_id)}"

    @property
    def held_mark(self) -> str:
        """The end of keys and cursors that name this snapshot while its sinks hold rows back; ""
        otherwise. A start commits these rows, and the snapshot keeps its id."""
        return ":held" if self.ref.holds else ""

    def rows(self, sinks: Iterable[str]) -> dict[str, int]:
        """Returns the number of rows visible in each of the sinks since the job began."""
        return {sink: self._counters(sink).rows_out for sink in sinks}

    def as_restored(self, graph: Graph) -> ExecutionStarted:
        """Returns the event of an execution that is restored from this snapshot."""
        return ExecutionStarted(
            job=self.record.job,
            execution_id=self.ref.execution_id,
            restarts=self.record.restarts,
            restored_snapshot_id=self.ref.snapshot_id,
            restored_epoch_id=self.ref.epoch_id,
            start_duration_ms=0,
            stages={n.name: self._stage(n.name) for n in graph if graph.is_named(n.name)},
            sources={node.name: self._source(node.name) for node in graph.sources},
            first_execution_id=self.record.first_execution_id,
        )

    def _stage(self, name: str) -> StageProgress:
        watermark_ms = self.manifest.watermarks.get("reached_ms", {}).get(name)
        if watermark_ms is not None and watermark_ms >= FINAL_WATERMARK_MS:
            watermark_ms = None  # the input is over: event time has no lag any more
        state_rows = sum(_rows(chain) for chain in self.manifest.shards.get(name, ()))
        progress = StageProgress(0, 0, watermark_ms=watermark_ms, state_rows=state_rows)
        return with_totals(progress, self._counters(name))

    def _source(self, name: str) -> SourceProgress:
        counters = self._counters(name)
        position = self.manifest.sources.get(name, {})
        return SourceProgress(counters.rows_in, position, lag={}, lost=counters.lost)

    def _counters(self, name: str) -> Counters:
        return self.manifest.shown(name)


def job_mark(first_execution_id: int) -> str:
    """Returns the end of the data versions of a job that was deleted and began anew; "" for others.

    Snapshot ids, epochs and the timeline begin anew with it, the ids of executions do not.

    Example:
        >>> job_mark(1), job_mark(52)
        ('', '.52')
    """
    return f".{first_execution_id}" if first_execution_id > 1 else ""


def nothing_committed(job: str, graph: Graph) -> ExecutionStarted:
    """Returns the event for a job that ended without any input: zero rows everywhere."""
    return ExecutionStarted(
        job=job,
        execution_id=1,
        restarts=0,
        restored_snapshot_id=0,
        restored_epoch_id=0,
        start_duration_ms=0,
        stages={n.name: StageProgress(0, 0) for n in graph if graph.is_named(n.name)},
    )


def newest_commit(jet: Jet, job: str) -> CommittedSnapshot | None:
    """Returns a job's newest commit; None before the first commit, and for a job that never ran.

    Raises:
        StoreUnavailableError: too few members of the store answer.
        SnapshotInvalidError: the snapshot's manifest is missing or damaged.
    """
    return next(iter(commits(jet, job)), None)


def commits(jet: Jet, job: str) -> Iterable[CommittedSnapshot]:
    """Yields the retained commits of a job, newest first. Raises the errors of `newest_commit`."""
    record = jet.job(job).record()
    for ref in record.snapshots if record is not None else ():
        # The snapshot of epoch 0 holds the start positions of the sources; it has no output.
        if record is None or not ref.committed or ref.epoch_id == 0:
            continue
        try:
            yield CommittedSnapshot(record, ref, jet.job(job).manifest(ref.snapshot_id))
        except JobStateError:
            continue  # dropped concurrently; the next tick sees newer ones


def _rows(chain: Iterable[ChunkSet]) -> int:
    """Counts the rows of a shard's newest base and of the chunk sets after it."""
    rows = 0
    for chunk_set in chain:
        rows = chunk_set.rows if chunk_set.is_base else rows + chunk_set.rows
    return rows
