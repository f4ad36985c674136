"""The handle of a pipeline that another process runs, through the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_jet.errors import (
    JobFailedError,
    JobStateError,
    SnapshotInvalidError,
    StoreCorruptedError,
)
from dagster_jet.exports.export import Export
from dagster_jet.exports.making import export_snapshot
from dagster_jet.jobs import requests
from dagster_jet.jobs.job import Job, JobResult
from dagster_jet.jobs.legal_requests import JobRequest, check, refusal, refuse_without_name
from dagster_jet.jobs.totals import result_of
from dagster_jet.observe.reading.remote_progress import RemoteProgress
from dagster_jet.observe.reading.terminal_line import terminal_line
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.observe.writing.report_keeper import read_report
from dagster_jet.ownership.liveness import LeaseWatch, as_lost
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.ownership.supervision import Intent, read_supervision, resume, set_intent
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.2
_WANTED = {kind.cause for kind in StopKind}


class RemoteJob(Job):
    """Sends requests through the store; the owner carries them out, and the record shows it."""

    def __init__(
        self,
        store: Store,
        name: str,
        open_session: Callable[[], SparkSession],
        *,
        show_progress: bool = False,
    ) -> None:
        super().__init__(store, name, open_session)
        self._shows_progress = show_progress
        self._shut_down: ExecutionRecord | None = None
        """Record of the execution that was last asked here to shut down."""

    def result(self, timeout: float | None = None) -> JobResult:
        record = self._ended(timeout)
        if record is None:
            raise JobStateError(
                "no job of this name has ever run with this store.",
                job=self.name,
                cure="See Jet.jobs().",
            )
        if record.failure is not None and record.cause not in _WANTED:
            raise JobFailedError(f"{record.failure}.", job=self.name)
        return self._result_of(record)

    def _result_of(self, record: ExecutionRecord) -> JobResult:
        if record.snapshot is None:
            return result_of(record, {}, sources=(), sinks=())
        manifest = SnapshotStore(self._store, self.name).load(record.snapshot)
        return result_of(
            record,
            manifest.counters,
            sources=manifest.sources,
            sinks=manifest.counters.keys() - manifest.sources.keys() - manifest.shards.keys(),
        )

    def request_stop(self, kind: StopKind) -> None:
        refuse_without_name(self.name, kind)
        record = self._checked(JobRequest(kind.value))
        if not record.status.is_live:
            raise refusal(self.name, JobRequest(kind.value), record.status, record.failure)
        requests.request(self._store, self.name, kind, record.execution_id)
        self._shut_down = record if kind is StopKind.SHUTDOWN else None

    def suspend(self, timeout: float | None = 60) -> JobResult:
        record, self._shut_down = self._checked(JobRequest.SUSPEND), None
        if not self._is_of_plain_python(record):
            # The intent first: whatever ends the execution, none is started after it.
            set_intent(self._store, self.name, Intent.PAUSED)
        if not record.status.is_live:
            try:  # how its last execution ended is no answer
                return self._result_of(record)
            except (SnapshotInvalidError, StoreCorruptedError):
                return result_of(record, {}, sources=(), sinks=())
        requests.request(self._store, self.name, StopKind.SUSPEND, record.execution_id)
        return self.result(timeout)

    def export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        self._checked(JobRequest.EXPORT)
        return export_snapshot(self._store, self.name, name, timeout)

    def cancel_and_export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        self._checked(JobRequest.CANCEL_AND_EXPORT)
        return export_snapshot(self._store, self.name, name, timeout, cancels=True)

    def resume(self) -> None:
        """Has its supervisor or schedule start the job; returns at once.

        Raises:
            JobStateError: the job cannot be resumed, or was never supervised.
        """
        record = self._checked(JobRequest.RESUME)
        supervision = read_supervision(self._store, self.name)
        if supervision is None:
            raise JobStateError(
                f"cannot resume: the job is {record.status.value}, this process does not have "
                "its pipeline, and no supervisor has ever started it.",
                job=self.name,
                cure="Submit its pipeline from any process: the job continues from its last "
                "snapshot.",
            )
        resume(self._store, self.name, record.execution_id)

    def _checked(self, request: JobRequest) -> ExecutionRecord:
        """The record as observed now, once the request is checked against it."""
        record = self.record()
        if record is None:
            raise JobStateError(
                f"cannot {request.value}: the job is unknown.",
                job=self.name,
                cure="Start it first.",
            )
        supervision = read_supervision(self._store, self.name)
        intent = supervision.intent if supervision is not None else Intent.ALWAYS_ON
        check(self.name, request, record.status, record.failure, intent)
        return record

    def _is_of_plain_python(self, record: ExecutionRecord) -> bool:
        """Whether a program runs the job, and no Dagster run that would be started again."""
        of_a_program = record.lease is not None and record.lease.run_id is None
        return of_a_program and read_supervision(self._store, self.name) is None

    def _report(self, execution_id: int) -> ProgressReport | None:
        found = read_report(self._store, self.name)
        return found[1] if found is not None and found[0] == execution_id else None

    def _ended(self, timeout: float | None) -> ExecutionRecord | None:
        """Waits until no execution is live, or its owner is gone; returns the record.

        After a shutdown it waits until the execution has ended: a standby may have the job before
        anybody sees it down.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        watch, record = LeaseWatch(), read_record(self._store, self.name)
        progress = RemoteProgress(SnapshotStore(self._store, self.name).load, self._report)
        with terminal_line(self._shows_progress) as line:
            try:
                while record is not None and record.status.is_live and not self._is_over(record):
                    if watch.sees(record) is False:
                        record = as_lost(record)
                        break
                    if deadline is not None and time.monotonic() > deadline:
                        raise TimeoutError(f"job {self.name!r} is still {record.status.value}")
                    if line is not None:
                        line.draw(progress.line(record))
                    time.sleep(_POLL_S)
                    record = read_record(self._store, self.name)
            finally:
                if line is not None and line.was_drawn:
                    line.end(progress.summary(record))
        return record

    def _is_over(self, record: ExecutionRecord) -> bool:
        """Whether another process has the job since it was asked here to shut down. The same one
        may have begun another execution, which carries the request out."""
        asked, lease = self._shut_down, record.lease
        if asked is None or asked.lease is None or lease is None:
            return False
        return record.execution_id > asked.execution_id and lease.process != asked.lease.process
