"""Removal of snapshot data that no job's record names, while the jobs are not running."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.errors import JetError
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, read_record
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store


@dataclass(frozen=True)
class JobGarbage:
    """Result of the garbage collection for one job.

    Attributes:
        job: the job's name.
        removed: number of entries removed: chunks, indexes, manifests.
        skipped: the reason if the job was skipped, else None.
    """

    job: str
    removed: int = 0
    skipped: str | None = None


def collect_garbage(store: Store) -> list[JobGarbage]:
    """Remove garbage of dead executions, for every job of the namespace that is not live.

    Removes only entries of executions up to the one in the record, and none that a retained
    snapshot names: a job that starts meanwhile reads retained snapshots and writes under a
    higher execution id. A job that is live, or looks so because its driver died, is skipped: its
    driver may still decide on its data, and the next start removes the garbage. A crash inside
    leaves the rest for the next call.
    """
    names = sorted(key.name for key in store.map(JOB_DIRECTORY).keys(""))
    return [_collect(store, name) for name in names]


def _collect(store: Store, job: str) -> JobGarbage:
    record = read_record(store, job)
    if record is None:
        return JobGarbage(job, skipped="it has no record")
    if record.status.is_live:
        return JobGarbage(job, skipped=f"it is {record.status.value}")
    snapshots = SnapshotStore(store, job)
    try:
        retained = snapshots.load_retained(record.snapshots)
        removed = snapshots.delete_unreferenced(record.execution_id + 1, retained)
    except JetError as error:
        return JobGarbage(job, skipped=str(error))
    return JobGarbage(job, removed)
