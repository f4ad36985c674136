"""Deletes a job's data in the store and, on request, its marks in the places of its sinks.

The record decides. The first write says that the job is being deleted; after it nothing starts the
job, and a call after a crash continues the deletion. The last write empties the record's register.
The job's registers stay, a few hundred bytes each. Without them a paused execution would find no
ballot above its own, and a supervisor would count its requests from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_jet.connectors.reopening import reopen_sink
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.errors import JobStateError, StoreUnavailableError
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, RecordKeeper, read_record
from dagster_jet.ownership.supervision import Intent, read_supervision, set_intent
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.protocol import Purpose, WriteOutcome
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store
from dagster_jet.system.failpoint import fail_point

_LEASE_TTL_MS = 15_000


@dataclass(frozen=True)
class JobDeletion:
    """Result of a deletion.

    Attributes:
        job: the job's name.
        entries: removed entries of its maps: chunks, manifests, notes, staged rows.
        released: sinks whose places no longer know the job.
        kept: the reason by sink why its place still knows the job.
        emptied: sinks whose places have no rows of the job any more.
    """

    job: str
    entries: int
    released: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    emptied: tuple[str, ...] = ()


def delete_job(
    store: Store, job: str, *, release_sinks: bool = True, remove_output: bool = False
) -> JobDeletion:
    """Delete a job that does not run. Its exported snapshots stay, and by default its output.

    A crash inside leaves a job that cannot be started; the same call completes the deletion.

    Args:
        store: the open store; all of its members have to answer.
        job: the job's name.
        release_sinks: first remove what its executions have staged in the places of its sinks, and
            the marks that say whose these are and what was committed. False: another job of this
            name, of the same store, can use these places.
        remove_output: also remove its committed rows, from sinks that can (`sinks_that_keep_rows`).
            It implies `release_sinks`.

    Raises:
        JobStateError: there is no such job; or its last snapshot is decided and not committed yet.
        LeaseHeldError: the job runs, or another process deletes it.
        StoreUnavailableError: a member does not answer; its data would come back.
        JetError: the place of a sink cannot be reached now; nothing else was deleted. If it is gone
            for good, leave its marks: `release_sinks=False`.
    """
    _check_members(store, job)
    found = read_record(store, job)
    if found is not None:
        _marked(found)
    elif not _has_orphans(store, job):
        raise JobStateError("no job of this name exists.", job=job, cure="See 'dagster-jet jobs'.")
    keeper = RecordKeeper(store, job, _LEASE_TTL_MS, None)
    record = keeper.claim(change=_marked, deletes=True)
    try:
        fail_point("delete.marked")
        deletion = JobDeletion(job, 0)
        if release_sinks or remove_output:
            deletion = _release(store, record, remove_output=remove_output)
        # The record drops the manifests before their deletion, so a repeated call loads none.
        _check(job, keeper.write(replace(record, snapshots=()), Purpose.LEASE))
        fail_point("delete.released")
        entries = _delete_maps(store, job)
        fail_point("delete.maps")
        if read_supervision(store, job) is not None:
            set_intent(store, job, Intent.PAUSED)  # or a supervisor would start it at once
        directory = store.map(JOB_DIRECTORY)
        directory.delete_all([directory.key(job)])
        fail_point("delete.unlisted")
    except BaseException:
        keeper.release(keeper.record)
        raise
    _check(job, keeper.erase())
    return replace(deletion, entries=entries)


def sinks_that_keep_rows(store: Store, job: str) -> list[str]:
    """Return the sinks of a job from which `delete_job` cannot remove its rows, sorted.

    Raises:
        JetError: a sink cannot be opened.
    """
    record, found = read_record(store, job), set()
    for sink, _, committer, _ in _committers(store, record) if record is not None else ():
        with closing(committer):
            if type(committer).remove_output is Committer.remove_output:
                found.add(sink)
    return sorted(found)


def reset_job(store: Store, job: str, *, remove_output: bool = False) -> JobDeletion:
    """Delete a job that does not run, so that its pipeline starts as a new one; its supervision
    stays. A crash after the deletion leaves the job paused.

    Args:
        store: as for `delete_job`.
        job: the job's name.
        remove_output: as for `delete_job`.

    Raises:
        JetError: as `delete_job`.
    """
    before = read_supervision(store, job)
    deleted = delete_job(store, job, remove_output=remove_output)
    if before is not None:
        set_intent(store, job, before.intent)
    return deleted


def _marked(record: ExecutionRecord) -> ExecutionRecord:
    """The record of a job that is being deleted: no supervisor and no start takes it."""
    snapshot = record.snapshot
    if snapshot is not None and not snapshot.is_all_committed:
        raise JobStateError(
            f"its snapshot {snapshot.snapshot_id} is decided but not committed: a deletion would "
            "lose rows that its sinks do not have yet.",
            job=record.job,
            cure="Start the job once, which commits these rows. Then stop and delete it.",
        )
    return replace(
        record,
        status=JobStatus.FAILED,
        cause=StopCause.DELETE,
        failure="it is being deleted; if no deletion is running, delete it once more",
    )


def _check(job: str, outcome: WriteOutcome) -> None:
    if outcome is not WriteOutcome.WRITTEN:
        raise JobStateError(
            f"the record could not be written: {outcome.value}. Part of the job is deleted.",
            job=job,
            cure="Delete it once more.",
        )


def _check_members(store: Store, job: str) -> None:
    away = store.away()
    if away:
        raise StoreUnavailableError(
            "these members of the store do not answer: "
            f"{'; '.join(f'{m}: {why}' for m, why in sorted(away.items()))}",
            job=job,
            cure="Bring them back, or remove them from the store. Otherwise the job's data on "
            "them would reappear when they come back.",
        )


def _maps(store: Store, job: str) -> list[str]:
    return store.map_names(f"jobs/{job}/")


def _has_orphans(store: Store, job: str) -> bool:
    directory = store.map(JOB_DIRECTORY)
    return bool(_maps(store, job)) or directory.get(directory.key(job)) is not None


def _delete_maps(store: Store, job: str) -> int:
    removed = 0
    for name in _maps(store, job):
        map = store.map(name)
        keys = map.keys("")
        map.delete_all(keys)
        removed += len(keys)
    return removed


def _release(store: Store, record: ExecutionRecord, *, remove_output: bool) -> JobDeletion:
    """Releases every place that a retained snapshot names, if its connector can."""
    released, kept, emptied = [], {}, []
    for sink, kind, committer, context in _committers(store, record):
        with closing(committer):
            committer.abort_orphans(context, ())
            if remove_output and committer.remove_output(context):
                emptied.append(sink)
            if committer.give_up_place(context):
                released.append(sink)
            else:
                kept[sink] = f"a sink of kind {kind!r} keeps its marks"
    return JobDeletion(
        record.job, 0, tuple(dict.fromkeys(released)), kept, tuple(dict.fromkeys(emptied))
    )


def _committers(
    store: Store, record: ExecutionRecord
) -> Iterator[tuple[str, str, Committer, CommitContext]]:
    """Opens every place of every sink that a retained snapshot names."""
    retained = SnapshotStore(store, record.job).load_retained(record.snapshots)
    for sink, destination, manifest in _destinations(retained.manifests.values()):
        context = CommitContext(
            record.job,
            sink,
            manifest.timeline,
            record.execution_id,
            recovering=True,
            held_writers=record.held_writers.get(sink, 0),
        )
        committer = reopen_sink(destination, store).open_committer(record.job, sink)
        yield sink, destination["kind"], committer, context


def _destinations(manifests: Iterable[Manifest]) -> list[tuple[str, Mapping[str, Any], Manifest]]:
    """Each place of each sink once, from the newest manifest that names it."""
    found: dict[str, tuple[str, Mapping[str, Any], Manifest]] = {}
    for manifest in sorted(manifests, key=lambda one: one.snapshot_id, reverse=True):
        for sink, destination in manifest.sinks.items():
            found.setdefault(
                f"{sink}: {sorted(destination.items())!r}", (sink, destination, manifest)
            )
    return list(found.values())
