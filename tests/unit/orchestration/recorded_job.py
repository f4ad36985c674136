"""A job as its executions leave it in the store: a record, and manifests that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.test_utils import create_run_for_test

from dagster_jet import Jet
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, record_register
from dagster_jet.snapshot.manifest import Artifact, Counters, Manifest, checksum
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore


@dataclass
class RecordedJob:
    """Writes what an execution writes at each commit. Rows are totals since the job began."""

    jet: Jet
    name: str = "shop"
    listed: bool = False
    """Whether the job is in the directory of all jobs, as real ones are."""
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Destinations of sinks."""
    execution_id: int = 1
    """The only execution; a job that was deleted goes on with a higher one."""

    def __post_init__(self) -> None:
        if self.listed:
            directory = self.jet.store.map(JOB_DIRECTORY)
            directory.put_all({directory.key(self.name): b""})
        self._record = ExecutionRecord(
            self.name,
            self.execution_id,
            JobStatus.NOT_RUNNING,
            first_execution_id=self.execution_id,
        )
        self._ballot = self.execution_id - 1

    def commits(
        self,
        snapshot_id: int,
        rows: Mapping[str, int],
        *,
        committed: bool = True,
        reads: Mapping[str, int] | None = None,
        reached_ms: Mapping[str, int | None] | None = None,
        artifacts: Sequence[Artifact] = (),
        held: Mapping[str, int] | None = None,
        reached_before_ms: Mapping[str, int | None] | None = None,
    ) -> None:
        """A snapshot, the rows that each sink has by then, and the stages' watermarks.

        Args:
            held: rows that sinks hold back, and then the watermarks of before these.
        """
        waiting = (Artifact(s, snapshot_id, s, s, n, n, 0) for s, n in (held or {}).items())
        artifacts = (*artifacts, *waiting)
        counters = {sink: Counters(rows_in=n, rows_out=n) for sink, n in rows.items()}
        sources = {source: Counters(rows_in=n) for source, n in (reads or {}).items()}
        manifest = Manifest(
            job=self.name,
            snapshot_id=snapshot_id,
            epoch_id=snapshot_id,
            execution_id=self.execution_id,
            timeline=self._record.timeline,
            plan_fingerprint="",
            partition_count=271,
            sources={source: {"files": n} for source, n in (reads or {}).items()},
            watermarks={} if reached_ms is None else {"reached_ms": dict(reached_ms)},
            shards={},
            artifacts=tuple(artifacts),
            counters={**counters, **sources},
            sinks={sink: self.places.get(sink, {}) for sink in rows},
            held=tuple(held or ()),
            watermarks_before={"reached_ms": dict(reached_before_ms or {})} if held else {},
        )
        data = manifest.to_bytes()
        SnapshotStore(self.jet.store, self.name).write(manifest)
        ref = SnapshotRef(
            snapshot_id,
            snapshot_id,
            self.execution_id,
            manifest.name,
            checksum(data),
            0,
            0,
            committed,
            bool(held),
        )
        self._write(replace(self._record, snapshots=(ref, *self._record.snapshots)))

    def drops(self, *snapshot_ids: int) -> None:
        """Retention: the record names these no longer, and then their data is deleted."""
        dropped = [ref for ref in self._record.snapshots if ref.snapshot_id in snapshot_ids]
        kept = (ref for ref in self._record.snapshots if ref not in dropped)
        self._write(replace(self._record, snapshots=tuple(kept)))
        names = [ref.manifest_name for ref in dropped]
        SnapshotStore(self.jet.store, self.name).delete(names, {})

    def commits_what_it_holds(self) -> None:
        """A start commits what is decided and not committed, and the rows that sinks hold back; the
        snapshot keeps its id."""
        newest, *older = self._record.snapshots
        newest = replace(newest, committed=True, holds=False)
        self._write(replace(self._record, snapshots=(newest, *older)))

    def starts_execution(self, execution_id: int, lease: Lease) -> None:
        """Another execution has the job."""
        self.execution_id = execution_id
        self._record = replace(self._record, execution_id=execution_id)
        self.is_held_by(lease)

    def goes_back_to(self, snapshot_id: int) -> None:
        """`initial_snapshot=...`."""
        self._write(self._record.rewound(snapshot_id))

    def is_held_by(self, lease: Lease | None, definition: str = "") -> None:
        """An execution has the job, with this definition, or none any more."""
        status = JobStatus.RUNNING if lease is not None else JobStatus.NOT_RUNNING
        self._write(replace(self._record, status=status, lease=lease, definition=definition))

    def has_ended(self, status: JobStatus) -> None:
        self._write(replace(self._record, status=status, lease=None))

    def _write(self, record: ExecutionRecord) -> None:
        self._ballot += 1
        register = self.jet.store.register(record_register(self.name))
        register.claim(self._ballot, "test").write(record.to_bytes())
        self._record = record


def queued_run(instance: dg.DagsterInstance, job: str, tags: Mapping[str, str]) -> dg.DagsterRun:
    """A run that Dagster's queue has."""
    code = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("shop"), "shop")
    return create_run_for_test(
        instance,
        job,
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(code, job),
        tags=tags,
    )
