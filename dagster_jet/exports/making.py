"""Exports of a job's snapshots: requested anywhere, made by the process that has the job.

A request is an entry of the list of exports (`export_list.py`), so it outlives the requester.
The process that drives the job makes the export beside the epochs, from the first snapshot that has
everything read by then. Only this process can suspend garbage collection meanwhile. If the job is
down, the waiting process makes the export from the last committed snapshot.

    asker ──▶ list: asked ──▶ owner or asker: being written ──▶ copies ──▶ list: done

A crash at any point leaves the entry unchanged and data that nothing names. The next start of the
job, or a waiting process, begins another attempt.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from dagster_jet.errors import (
    JetError,
    JobStateError,
    MembersChangedError,
    SnapshotInvalidError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
)
from dagster_jet.exports.copying import copy_snapshot
from dagster_jet.exports.export import Export, ExportState
from dagster_jet.exports.export_list import (
    ExportList,
    drop_data,
    export_data,
    is_abandoned,
    read_exports,
)
from dagster_jet.exports.exporting import newest_committed
from dagster_jet.ownership.liveness import observed
from dagster_jet.ownership.record_keeper import last_execution_id, read_record
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store

_WAIT_S = 0.2
_ATTEMPTS_MAX = 5


def export_snapshot(
    store: Store,
    job: str,
    name: str,
    timeout: float | None,
    *,
    cancels: bool = False,
    drives: Callable[[], bool] = lambda: False,
) -> Export:
    """Requests an export of a job and waits until it is done.

    Args:
        store: the open store.
        job: the job's name.
        name: the export's name.
        timeout: in seconds; None: no limit.
        cancels: the job is to be cancelled at this snapshot.
        drives: whether this process drives the job and so makes the export.

    Raises:
        ConfigurationError: the name is not valid.
        JobStateError: an export has this name; or the job has no committed snapshot.
        TimeoutError: it is not made yet; the request stays.
        JetError: it could not be made.
    """
    execution_id = last_execution_id(store, job)
    if drives():
        execution_id += 1  # this process's own may not have won the record yet
    token = uuid.uuid4().hex
    asked = Export(name, job, token, cancels=cancels, asked_execution_id=execution_id)
    _ask(store, asked)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        entry = next((one for one in read_exports(store) if one.token == token), None)
        if entry is None:
            raise JobStateError(f"the export {name!r} was deleted before it was finished.", job=job)
        if entry.is_done:
            return entry
        if entry.state is ExportState.FAILED:
            raise JobStateError(f"the export {name!r} failed: {entry.failure}", job=job)
        is_free = entry.state is ExportState.ASKED or is_abandoned(entry)
        if is_free and not drives() and is_down(store, job):
            carry_out(store, entry, lambda: last_committed(store, job))
            continue
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(
                f"job {job!r}: the export {name!r} is {entry.state.value}; the execution that "
                "owns the job makes it later"
            )
        time.sleep(_WAIT_S)


def _ask(store: Store, export: Export) -> None:
    try:
        ExportList(store).ask(export)
    except MembersChangedError:
        store.refresh()
        ExportList(store).ask(export)


def carry_out(
    store: Store, export: Export, choose: Callable[[], SnapshotRef | None]
) -> Export | None:
    """Makes an export; None: another process does, or it was deleted.

    Args:
        store: the open store.
        export: its entry, as it was just read.
        choose: the snapshot to export now; None: there is none, which fails the export.

    Raises:
        StoreError: the store cannot be written now. The entry waits to be made.
        JetError: it cannot be made; the entry says so, too.
    """
    failed: tuple[SnapshotRef | None, JetError] | None = None
    for _ in range(_ATTEMPTS_MAX):
        exports = ExportList(store)  # before the maps: its configuration must not be newer
        begun = None
        try:
            ref = choose()
            if ref is None:
                raise _nothing_to_export(export.job)
            if failed is not None and ref == failed[0]:
                raise failed[1]  # it was not dropped, so it is damaged
            begun = exports.begin(export, ref)
            if begun is None:
                return None
            drop_data(store, export)  # data of a dead attempt, or of our last one
            return _written(store, exports, begun, ref)
        except (SnapshotInvalidError, StoreCorruptedError) as error:
            if begun is None:
                exports.fail(export, str(error))
                raise
            failed, export = (ref, error), begun  # the job may have dropped it meanwhile
        except MembersChangedError:
            store.refresh()
            export = begun or export
        except StoreError:
            if begun is not None:
                with suppress(StoreError):
                    # A done entry keeps its data: the write that seemed to fail succeeded.
                    if exports.give_back(begun):
                        drop_data(store, begun)
            raise
        except JetError as error:
            exports.fail(begun or export, str(error))
            raise
    ExportList(store).give_back(export)
    raise StoreUnavailableError(
        f"the export {export.name!r} was tried {_ATTEMPTS_MAX} times; each time the snapshot was "
        "deleted or the store's members changed meanwhile.",
        job=export.job,
        cure="Repeat the request, or keep more snapshots with JobConfig(retained_snapshots=...).",
    )


def _nothing_to_export(job: str) -> JobStateError:
    return JobStateError(
        "the job has no committed snapshot to export.",
        job=job,
        cure="Start it once: its first snapshot is taken before it reads anything.",
    )


def _written(store: Store, exports: ExportList, begun: Export, ref: SnapshotRef) -> Export | None:
    own, data = SnapshotStore(store, begun.job), export_data(store, begun)
    manifest = own.load(ref)
    _, checksum = copy_snapshot(own, data, manifest)
    size = manifest.state_bytes + len(manifest.to_bytes())
    done = exports.finish(begun, replace(ref, manifest_checksum=checksum), size)
    if done is None:
        drop_data(store, begun)
    return done


def is_down(store: Store, job: str) -> bool:
    record = observed(store, job)
    return record is None or not record.status.is_live


def last_committed(store: Store, job: str) -> SnapshotRef | None:
    record = read_record(store, job)
    return None if record is None else newest_committed(record.snapshots)
