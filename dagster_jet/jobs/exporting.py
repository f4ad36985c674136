"""Exports of a job's snapshots: requested anywhere, made by the process that has the job.

A request is an entry of the list of exports (`ownership/exports.py`), so it outlives the requester.
The process that drives the job makes the export beside the epochs, from the first snapshot that has
everything read by then. Only this process can suspend garbage collection meanwhile. If the job is
down, the waiting process makes the export from the last committed snapshot.

    asker ──▶ list: asked ──▶ owner or asker: being written ──▶ copies ──▶ list: done

A crash at any point leaves the entry unchanged and data that nothing names. The next start of the
job, or a waiting process, begins another attempt.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from dagster_jet.errors import (
    JetError,
    JobStateError,
    MembersChangedError,
    SnapshotInvalidError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
)
from dagster_jet.execution.exporting import Exporting, acked_epoch, newest_committed
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.ownership.exports import (
    ExportList,
    drop_data,
    export_data,
    is_abandoned,
    read_exports,
)
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.ownership.liveness import observed
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.export import Export, ExportState
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store
from dagster_jet.system.background_thread import BackgroundThread

_logger = logging.getLogger(__name__)

_POLL_S = 1.0
"""Seconds between the owner's checks for requests; each check reads one register."""
_WAIT_S = 0.2
_ATTEMPTS_MAX = 5
_END_S_MAX = 60.0


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
    record = read_record(store, job)
    execution_id = record.execution_id if record is not None else 0
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
        if is_free and not drives() and _is_down(store, job):
            carry_out(store, entry, lambda: _last_committed(store, job))
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
    data.copy(own, manifest)
    done = exports.finish(begun, manifest.state_bytes + len(manifest.to_bytes()))
    if done is None:
        drop_data(store, begun)
    return done


def _is_down(store: Store, job: str) -> bool:
    record = observed(store, job)
    return record is None or not record.status.is_live


def _last_committed(store: Store, job: str) -> SnapshotRef | None:
    record = read_record(store, job)
    return None if record is None else newest_committed(record.snapshots)


def _is_anothers(export: Export) -> bool:
    """Whether another process, certainly alive, is writing it: one that found the job down."""
    writer = export.writer
    return writer is not None and writer.pid != os.getpid() and bool(is_owner_alive(writer))


class ExportWatcher(BackgroundThread):
    """Makes requested exports of a job that this process drives, on its own thread.

    Watches from before the first execution until after the last one. At the end it makes the
    remaining exports from the last snapshot.

    Args:
        store: the job's store.
        job: the job's name.
        exporting: state shared with the executions.
        stop: receives a request to cancel at an export.
        takes_snapshots: False: the job's guarantee is "none".
        last_execution_id: of the last execution before this process's own; 0: none.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        exporting: Exporting,
        stop: StopSignal,
        *,
        takes_snapshots: bool,
        last_execution_id: int,
    ) -> None:
        super().__init__(f"jet-exports-{job}", end_s=_END_S_MAX)
        self._store, self._job, self._exporting, self._stop = store, job, exporting, stop
        self._takes_snapshots, self._last_execution_id = takes_snapshots, last_execution_id
        self._trouble = ""
        """Error of the last check; logged once."""

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            self.look()

    def __exit__(self, *exception: object) -> None:
        is_hurried = self._stop.kind is StopKind.SHUTDOWN
        if is_hurried:
            self._end_s = 0.0  # the process is to end; exports are left to the next start
        super().__exit__(*exception)
        if not self._thread.is_alive() and not is_hurried:
            self.look()

    def look(self) -> None:
        """Makes the requested exports. The next check retries those that the store refuses now."""
        try:
            exports = [one for one in read_exports(self._store) if one.job == self._job]
            for export in exports:
                if export.is_due:
                    self._make(export)
            self._trouble = ""
        except JetError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _logger.warning("job %r, an export: %s", self._job, error)

    def _make(self, export: Export) -> None:
        if not self._takes_snapshots:
            reason = 'with the guarantee "none" there is no snapshot to export'
            ExportList(self._store).fail(export, reason)
            return
        if export.cancels and self._exporting.view() is not None:
            if export.asked_execution_id > self._last_execution_id:
                self._stop.request(StopKind.CANCEL_AND_EXPORT)
            else:
                reason = "the execution to be cancelled had already ended"
                ExportList(self._store).fail(export, reason)
            return  # made at the end, from the terminal snapshot
        if _is_anothers(export):
            return
        is_ready = _is_down(self._store, self._job) if self._ended.is_set() else self._await_fresh()
        if not is_ready:
            return
        with self._exporting.garbage:
            carry_out(self._store, export, lambda: _last_committed(self._store, self._job))

    def _await_fresh(self) -> bool:
        """Waits for a committed snapshot of everything read by now. False: no execution can take
        one now; the next check tries again."""
        execution_id, wanted_epoch = None, 0
        self._exporting.wants_snapshot = True
        try:
            while not self._ended.wait(_WAIT_S / 4):
                view = self._exporting.view()
                if view is None or view.record is None:
                    return False
                if view.record.execution_id != execution_id:
                    # A new execution reads again what the last one had read and not decided.
                    execution_id, wanted_epoch = view.record.execution_id, acked_epoch(view)
                ref = newest_committed(view.record.snapshots)
                if ref is not None and ref.epoch_id >= wanted_epoch:
                    return True
            return False
        finally:
            self._exporting.wants_snapshot = False
