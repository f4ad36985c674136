"""The user's handle of a pipeline that this process runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import JetError, JobStateError
from dagster_jet.execution.events import InitialSnapshotSkipped, JobEvent
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.exports.export import Export
from dagster_jet.exports.exporting import Exporting
from dagster_jet.exports.making import export_snapshot
from dagster_jet.exports.watcher import ExportWatcher
from dagster_jet.jobs.completed import ignored_input
from dagster_jet.jobs.driver import Driver
from dagster_jet.jobs.job import Job, JobResult
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.legal_requests import refuse_without_name
from dagster_jet.jobs.members_repairer import MembersRepairer
from dagster_jet.jobs.requests import RequestWatcher
from dagster_jet.jobs.standby import Standby
from dagster_jet.jobs.totals import Totals, result_of
from dagster_jet.observe.metrics import JobMetrics, open_metrics
from dagster_jet.observe.reading.run_progress import RunProgress
from dagster_jet.observe.reading.watched_wait import wait
from dagster_jet.ownership.admission import quorum
from dagster_jet.ownership.lease import is_owner_alive, wall_clock_ms
from dagster_jet.ownership.record_keeper import last_execution_id, read_record
from dagster_jet.ownership.succession import Succession
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import Doing, ExecutionRecord, JobStatus
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.spark.cluster import jvm_log
from dagster_jet.spark.errors import is_of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


class PipelineJob(Job):
    """Drives a pipeline on its own thread until it ends. Made by `Jet.submit`."""

    def __init__(
        self,
        order: Order,
        open_session: Callable[[], SparkSession],
        *,
        on_event: Callable[[JobEvent], None] | None,
        run_id: str | None,
        show_progress: bool = False,
    ) -> None:
        super().__init__(order.store, order.job, open_session)
        self._order, self._run_id = order, run_id
        self._stop_signal = StopSignal()
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        self._is_read = False
        """Whether somebody has asked for the result since the job ended."""
        self.done = threading.Event()
        """Set when the driver thread has ended. Wait on it, not on the thread."""
        self._graph = order.graph
        self._on_event = on_event if on_event is not None else _ignore
        self._shows_progress, self._progress = show_progress, RunProgress(order.job)
        self._exporting = Exporting()
        self.is_released = False
        """Whether the lease was released while the execution was running: it decides nothing."""
        self._metrics: JobMetrics | None = None
        self._driver = Driver(order, open_session, self._emit, run_id, self._exporting)

    def __repr__(self) -> str:
        state = "has ended in" if self.done.is_set() else "runs in"
        return f"<PipelineJob {self.name!r}: {state} this process>"

    @property
    def is_anothers(self) -> bool:
        """Whether another process drives the job: this process never had it, or has lost it. A
        standby that has not taken the job over never had it.

        Raises:
            StoreUnavailableError: too few members answer.
        """
        keeper = self._driver.keeper
        if keeper is not None and keeper.last_execution_id is not None:
            return keeper.fenced.is_set()
        if self._order.standby:
            return True
        record = read_record(self._store, self.name)
        if record is None or not record.status.is_live or record.lease is None:
            return False
        return is_owner_alive(record.lease) is not False

    @property
    def is_newest(self) -> bool:
        """Whether no other process has had the job since: this handle's result is current."""
        record, keeper = read_record(self._store, self.name), self._driver.keeper
        return (
            record is not None
            and keeper is not None
            and keeper.last_execution_id == record.execution_id
        )

    @property
    def is_idle(self) -> bool:
        """Whether this process drives the job and the job waits for input."""
        keeper = self._driver.keeper
        return keeper is not None and keeper.activity_tracker.activity().doing is Doing.IDLE

    # --- waiting and requests -------------------------------------------------------------------

    def start(self) -> None:
        """Starts the driver thread and returns at once. Called once; later `resume` does it."""
        thread = threading.Thread(target=self._run, name=f"jet-driver-{self.name}", daemon=True)
        thread.start()

    def result(self, timeout: float | None = None) -> JobResult:
        if not wait(self.done, timeout, lambda: self._progress, shows=self._shows_progress):
            raise TimeoutError(f"job {self.name!r} is still running")
        self._is_read = True
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def unread_failure(self) -> str | None:
        """A sentence about how the job has ended, unless it ended well or somebody knows."""
        if self._is_read:
            return None
        if not self.done.is_set():
            return f"job {self.name!r} has not ended; its rows since the last snapshot are not out."
        return None if self._error is None else f"job {self.name!r} has failed: {self._error}"

    def request_stop(self, kind: StopKind) -> None:
        refuse_without_name(self.name, kind)
        if self.done.is_set():
            raise self._has_ended(kind)
        self._stop_signal.request(kind)

    def export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        return self._export(name, timeout, cancels=False)

    def cancel_and_export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        if self.done.is_set():
            raise self._has_ended(StopKind.CANCEL_AND_EXPORT)
        return self._export(name, timeout, cancels=True)

    def _export(self, name: str, timeout: float | None, *, cancels: bool) -> Export:
        def drives() -> bool:
            return not self.done.is_set()

        return export_snapshot(
            self._store, self.name, name, timeout, cancels=cancels, drives=drives
        )

    def resume(self) -> None:
        if not self.done.is_set() or self.status is not JobStatus.SUSPENDED:
            raise JobStateError(
                f"cannot resume: the job is {self.status.value}.",
                job=self.name,
                cure="Only a suspended job can be resumed.",
            )
        self._result = self._error = None
        self._is_read = False
        self._stop_signal = StopSignal()
        self.done = threading.Event()
        self.start()

    def _has_ended(self, kind: StopKind) -> JobStateError:
        return JobStateError(
            f"cannot {kind.value}: the job has ended in this process.",
            job=self.name,
            cure="Submit the pipeline again to continue.",
        )

    def release_lease(self) -> None:
        """Gives up the right to decide: the execution cannot commit anything new from now on, and
        the end of the process does not wait for it."""
        self.is_released = True
        self._driver.abandon()

    def _emit(self, event: JobEvent) -> None:
        self._progress.note(event)
        if self._metrics is not None:
            self._metrics.note(event)
        self._on_event(event)

    # --- on the driver thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._result = self._drive()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the result
            self._error = _shown(error)
        finally:
            self.done.set()

    def _drive(self) -> JobResult:
        self._progress = RunProgress(self.name)
        sinks = frozenset(node.name for node in self._graph.sinks)
        self._metrics = open_metrics(self.name, sinks, self._store, wall_clock_ms)
        try:
            return self._drive_measured()
        finally:
            if self._metrics is not None:
                self._metrics.close()

    def _drive_measured(self) -> JobResult:
        expired = None
        if self._order.standby:
            standby = Standby(self._order, self._stop_signal, self._emit, self._run_id)
            succession = standby.wait()
            expired = standby.expired
            if succession is Succession.ENDS:
                return self._not_needed()
        record = read_record(self._store, self.name)
        if record is not None and self._stays_completed(record):
            return self._still_completed(record)
        last = last_execution_id(self._store, self.name) if record is None else record.execution_id
        stop = self._stop_signal
        timeout_ms = self._store.config.member_timeout_ms
        with (
            ExportWatcher(
                self._store,
                self.name,
                self._exporting,
                stop,
                takes_snapshots=self._order.config.guarantee is not Guarantee.NONE,
                last_execution_id=last,
            ),
            RequestWatcher(self._store, self.name, stop, last_execution_id=last),
            MembersRepairer(
                self._store,
                self.name,
                None if timeout_ms is None else timeout_ms / 1000,
                self._emit,
                fewest=self._fewest_members(record),
            ) as repairer,
        ):
            return self._driver.run(stop, repairer, expired)

    def _not_needed(self) -> JobResult:
        """The result of a standby that did not take the job over."""
        record = read_record(self._store, self.name)
        if record is None:
            record = ExecutionRecord(self.name, 0, JobStatus.NOT_RUNNING)
        return self._result_of(record, {})

    def _fewest_members(self, record: ExecutionRecord | None) -> int:
        if not self._store.config.split_brain_protection:
            return 0
        seen = record.members_max if record is not None else 0
        return quorum(max(seen, len(self._store.table.members)))

    def _stays_completed(self, record: ExecutionRecord) -> bool:
        goes_back_to = self._order.options.initial_snapshot
        goes_back = goes_back_to is not None and goes_back_to != record.rewound_to
        return record.status is JobStatus.COMPLETED and not goes_back

    def _still_completed(self, record: ExecutionRecord) -> JobResult:
        skipped = InitialSnapshotSkipped.by(record, self._order.options.initial_snapshot)
        if skipped is not None:
            _logger.warning("job %r: %s", self.name, skipped.text)
            self._emit(skipped)
        result = partial(self._result_of, record)
        if record.snapshot is None:
            return result({})
        manifest = SnapshotStore(self._store, self.name).load(record.snapshot)
        ignored = list(ignored_input(self.name, self._graph, self._store, manifest))
        for event in ignored:
            _logger.warning(
                "job %r is COMPLETED and reads nothing more, although %r has unread input: %s",
                self.name,
                event.source,
                event.waiting,
            )
            self._emit(event)
        waiting = {event.source: event.waiting for event in ignored}
        return result(manifest.counters, ignored_input=waiting)

    def _result_of(
        self,
        record: ExecutionRecord,
        totals: Totals,
        ignored_input: Mapping[str, Mapping[str, int]] | None = None,
    ) -> JobResult:
        return result_of(
            record,
            totals,
            sources=[node.name for node in self._graph.sources],
            sinks=[node.name for node in self._graph.sinks],
            ignored_input=ignored_input,
        )


def _shown(error: BaseException) -> BaseException:
    """The error as users see it: its frames, and those of the JVM, are in Spark's log, which it
    names if Spark is behind it. A user's own exception in this process stays its cause."""
    if not isinstance(error, JetError):
        return error
    of_spark = is_of_spark(error.__cause__)
    path = jvm_log.note(error, is_named=of_spark)
    if of_spark:
        if path is not None:
            error.see(f"Spark's log {path}")
        error.__cause__ = None
        error.__suppress_context__ = True
    return error.with_traceback(None)


def _ignore(event: JobEvent) -> None:
    """Used without a listener."""
