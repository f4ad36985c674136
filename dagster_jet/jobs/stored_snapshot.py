"""A snapshot in the store, retained or exported, as data: its manifest and its stages' state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from dagster_jet.errors import JobStateError, SnapshotInvalidError
from dagster_jet.execution.watermarks import saved_expiry
from dagster_jet.exports.export_list import export_data, finished_export
from dagster_jet.operators.saved_rows import living_rows
from dagster_jet.operators.state_difference import StateDifference, difference
from dagster_jet.ownership.record_keeper import is_retained, read_record
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.plan import StagePlan
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store

T = TypeVar("T")
Wanted = int | str | None
"""Id of a retained snapshot, name of an exported one, or None for the newest."""
_ATTEMPTS_MAX = 5
"""Newest snapshots that are begun with, one after the other, while a job drops them."""


@dataclass(frozen=True)
class StoredSnapshot:
    """One snapshot, and the store of its chunks."""

    manifest: Manifest
    data: SnapshotStore

    def plan(self, stage: str) -> StagePlan:
        """Meaning of the stage's saved state; empty if the snapshot has no such stage."""
        plan: StagePlan = self.manifest.plan.get(stage, {})
        return plan

    def expired_until_ms(self, stage: str) -> int | None:
        """Event time up to which the stage's rows had expired by the snapshot; None: none had."""
        return saved_expiry(self.manifest.watermarks, stage)

    def state(self, stage: str, *, as_saved: bool = False) -> pa.Table | None:
        """The rows of a stage; None if there are none. See `Job.read_state`."""
        saved = self.data.read_state(self.manifest, stage)
        if saved is None or as_saved:
            return saved
        living = living_rows(saved, self.plan(stage), self.expired_until_ms(stage))
        return living if living.num_rows else None


def find_snapshot(store: Store, job: str | None, wanted: Wanted) -> StoredSnapshot:
    """Finds a snapshot and reads its manifest. Raises the errors of `read_snapshot`."""
    return read_snapshot(store, job, wanted, lambda found: found)


def read_snapshot(
    store: Store, job: str | None, wanted: Wanted, read: Callable[[StoredSnapshot], T]
) -> T:
    """Finds a snapshot and reads from it. If the running job drops the newest one meanwhile, the
    one that is the newest then is read.

    Args:
        store: the open store.
        job: the snapshot's job; None: an export of any job.
        wanted: the snapshot's id or name.
        read: reads what is wanted of the snapshot.

    Raises:
        JobStateError: there is no such snapshot, or it is another job's; or the running job has
            dropped it meanwhile.
        SnapshotInvalidError: a part of it is missing or damaged.
    """
    if isinstance(wanted, str) and not wanted.isdigit():
        export = finished_export(store, wanted, job)
        if job is not None and export.job != job:
            raise JobStateError(
                f"the exported snapshot {wanted!r} belongs to job {export.job!r}.", job=job
            )
        assert export.ref is not None
        data = export_data(store, export)
        return read(StoredSnapshot(data.load(export.ref), data))
    assert job is not None
    for _ in range(_ATTEMPTS_MAX):
        ref = _retained(store, job, None if wanted is None else int(wanted))
        data = SnapshotStore(store, job)
        try:
            return read(StoredSnapshot(data.load(ref), data))
        except SnapshotInvalidError:
            if is_retained(store, job, ref):
                raise
        if wanted is not None:
            break
    raise JobStateError(
        f"the running job has dropped snapshot {ref.snapshot_id} while it was read.",
        job=job,
        cure="Export the snapshot and read the export: Job.export_snapshot(...). Or keep more "
        "snapshots with JobConfig(retained_snapshots=...).",
    )


def _retained(store: Store, job: str, snapshot_id: int | None) -> SnapshotRef:
    record = read_record(store, job)
    refs = record.snapshots if record is not None else ()
    for ref in refs:
        if snapshot_id in (None, ref.snapshot_id):
            return ref
    known = ", ".join(str(ref.snapshot_id) for ref in refs) or "none"
    raise JobStateError(
        f"snapshot {snapshot_id} is not retained; there are: {known}."
        if snapshot_id is not None
        else "the job has no snapshot yet.",
        job=job,
    )


def compare(
    before: StoredSnapshot, after: StoredSnapshot, stage: str | None
) -> tuple[StateDifference, ...]:
    """The changes from one snapshot to another, by stage.

    Args:
        before: the first snapshot.
        after: the second snapshot.
        stage: None: all stages with state in either snapshot.

    Raises:
        SnapshotInvalidError: neither has such a stage; its columns have changed; or a part of a
            snapshot cannot be read.
    """
    known = sorted({*before.manifest.shards, *after.manifest.shards})
    if stage is not None and stage not in known:
        raise SnapshotInvalidError(
            f"the snapshot has no state of this name; it has state of: {', '.join(known)}.",
            job=after.manifest.job,
            stage=stage,
        )
    found = (_difference(before, after, one) for one in ([stage] if stage is not None else known))
    return tuple(one for one in found if one is not None)


def _difference(
    before: StoredSnapshot, after: StoredSnapshot, stage: str
) -> StateDifference | None:
    tables = [
        snapshot.state(stage) if stage in snapshot.manifest.shards else None
        for snapshot in (before, after)
    ]
    there = next((table for table in tables if table is not None), None)
    if there is None:
        return None  # empty in both: not even columns are known
    ours, theirs = (table if table is not None else there.slice(0, 0) for table in tables)
    return difference(stage, ours, theirs, after.plan(stage) or before.plan(stage))
