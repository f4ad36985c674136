"""Watches for requested exports in the process that drives the job."""

from __future__ import annotations

import logging
import os
from typing import Protocol

from dagster_jet.errors import JetError
from dagster_jet.exports.export import Export
from dagster_jet.exports.export_list import ExportList, read_exports
from dagster_jet.exports.exporting import Exporting, acked_epoch, newest_committed
from dagster_jet.exports.making import carry_out, is_down, last_committed
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.store import Store
from dagster_jet.system.background_thread import BackgroundThread

_logger = logging.getLogger(__name__)

_POLL_S = 1.0
"""Seconds between the owner's checks for requests; each check reads one register."""
_FRESH_S = 0.05
_END_S_MAX = 60.0


class Stopping(Protocol):
    """Requests to stop the job."""

    @property
    def kind(self) -> StopKind | None:
        """The request that counts; None: there is none."""

    def request(self, kind: StopKind) -> None: ...


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
        stop: Stopping,
        *,
        takes_snapshots: bool,
        last_execution_id: int,
    ) -> None:
        super().__init__(f"jet-exports-{job}", end_s=_END_S_MAX)
        self._store, self._job, self._exporting, self._stop = store, job, exporting, stop
        self._takes_snapshots, self._last_execution_id = takes_snapshots, last_execution_id
        self._last_error = ""
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
            self._last_error = ""
        except JetError as error:
            if str(error) != self._last_error:
                self._last_error = str(error)
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
        is_ready = is_down(self._store, self._job) if self._ended.is_set() else self._await_fresh()
        if not is_ready:
            return
        with self._exporting.garbage:
            carry_out(self._store, export, lambda: last_committed(self._store, self._job))

    def _await_fresh(self) -> bool:
        """Waits for a committed snapshot of everything read by now. False: no execution can take
        one now; the next check tries again."""
        execution_id, wanted_epoch = None, 0
        self._exporting.wants_snapshot = True
        try:
            while not self._ended.wait(_FRESH_S):
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


def _is_anothers(export: Export) -> bool:
    """Whether another process, certainly alive, is writing it: one that found the job down."""
    writer = export.writer
    return writer is not None and writer.pid != os.getpid() and bool(is_owner_alive(writer))
