"""A job in this process: its driver thread, its restarts, and the handle that users hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_jet.engine.config import JobConfig, milliseconds
from dagster_jet.engine.events import (
    ExecutionEnded,
    ExecutionRestarting,
    JobEvent,
    StageProgress,
)
from dagster_jet.engine.execution import Execution
from dagster_jet.engine.members_watcher import MembersWatcher
from dagster_jet.engine.record_keeper import RecordKeeper, read_record
from dagster_jet.engine.requests import RequestWatcher
from dagster_jet.engine.restarts import Restarts
from dagster_jet.engine.snapshot_store import SnapshotStore
from dagster_jet.engine.stopping import StopSignal, Until
from dagster_jet.errors import (
    FencedError,
    JetError,
    JobStateError,
    SnapshotFailedError,
    StoreUnavailableError,
)
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.protocol import Stop, StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class JobResult:
    """What a run came to. Rows are totals of the job since it began, not of this run alone."""

    status: JobStatus
    rows_in: int
    rows_out: int
    snapshot_id: int | None
    epochs: int
    """Epochs that this run ran."""
    restarts: int = 0
    rows_rejected: int = 0
    """Of `rows_in`, or of what came to a stage: set aside as dead letters."""


class Job:
    """Drives a pipeline on a thread of its own until it ends. Made by `Jet.submit`."""

    def __init__(
        self,
        *,
        name: str,
        graph: Graph,
        config: JobConfig,
        until: Until,
        store: Store,
        open_session: Callable[[], SparkSession],
        work_dir: Path,
        on_event: Callable[[JobEvent], None] | None,
        run_id: str | None,
    ) -> None:
        self.name = name
        self.done = threading.Event()
        """Set when the driver thread has ended. Wait on it, not on the thread."""
        self._graph, self._config, self._until, self._store = graph, config, until, store
        self._open_session, self._work_dir = open_session, work_dir
        self._on_event, self._run_id = on_event, run_id
        self._stop_signal = StopSignal()
        self._keeper: RecordKeeper | None = None
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        self._epochs = 0
        self._thread = threading.Thread(target=self._drive, name=f"jet-driver-{name}", daemon=True)

    def start(self) -> Job:
        self._thread.start()
        return self

    # --- asking ---------------------------------------------------------------------------------

    @property
    def record(self) -> ExecutionRecord | None:
        """The record as a majority of the store's members knows it."""
        return read_record(self._store, self.name)

    @property
    def status(self) -> JobStatus:
        record = self.record
        return record.status if record is not None else JobStatus.NOT_RUNNING

    def result(self, timeout: float | None = None) -> JobResult:
        """Waits for the end.

        Raises:
            TimeoutError: still running.
            JetError: what the job ended with.
        """
        if not self.done.wait(timeout):
            raise TimeoutError(f"job {self.name!r} is still running")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    join = result

    # --- telling --------------------------------------------------------------------------------

    def request_stop(self, kind: StopKind) -> None:
        """Asks for a stop and returns at once; `done` tells when it has happened."""
        self._stop_signal.request(kind)

    def suspend(self, timeout: float | None = 60) -> JobResult:
        """Terminal snapshot, then SUSPENDED. `Jet.submit` of the same pipeline resumes it."""
        return self._stop_and_wait(StopKind.SUSPEND, timeout)

    def resume(self) -> Job:
        """Goes on after `suspend`, in this process, from the last snapshot.

        Raises:
            JobStateError: not suspended.
        """
        if not self.done.is_set() or self.status is not JobStatus.SUSPENDED:
            raise JobStateError(
                f"cannot resume: the job is {self.status.value}.",
                job=self.name,
                cure="Only a suspended job can be resumed.",
            )
        self._result = self._error = None
        self._stop_signal = StopSignal()
        self.done = threading.Event()
        self._thread = threading.Thread(
            target=self._drive, name=f"jet-driver-{self.name}", daemon=True
        )
        return self.start()

    def cancel(self, timeout: float | None = 60) -> JobResult:
        """Stops without a snapshot; the job is FAILED (cancelled)."""
        return self._stop_and_wait(StopKind.CANCEL, timeout)

    def complete(self, timeout: float | None = None) -> JobResult:
        """Takes what is there, then the inputs are over: every window is closed and committed."""
        return self._stop_and_wait(StopKind.COMPLETE, timeout)

    def restart(self) -> None:
        """Terminal snapshot, then a new execution at once (perhaps with another parallelism)."""
        self._require_running("restart")
        self._stop_signal.request(StopKind.RESTART)

    def release_lease(self) -> None:
        """Gives up the right to decide, now: the execution cannot commit anything new any more."""
        if self._keeper is not None:
            self._keeper.abandon()

    def _stop_and_wait(self, kind: StopKind, timeout: float | None) -> JobResult:
        self._require_running(kind.value)
        self._stop_signal.request(kind)
        return self.result(timeout)

    def _require_running(self, what: str) -> None:
        if self.done.is_set():
            raise JobStateError(
                f"cannot {what}: the job is {self.status.value} in this process.",
                job=self.name,
                cure="Submit the pipeline again to go on.",
            )

    # --- driving --------------------------------------------------------------------------------

    def _drive(self) -> None:
        try:
            self._result = self._run_executions()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the result
            self._error = error
        finally:
            self.done.set()

    def _run_executions(self) -> JobResult:
        record = read_record(self._store, self.name)
        if record is not None and self._stays_completed(record):
            return self._summary(record, self._totals(record))
        last_execution_id = record.execution_id if record is not None else 0
        with RequestWatcher(
            self._store, self.name, self._stop_signal, last_execution_id=last_execution_id
        ):
            return self._run_until_ended()

    def _stays_completed(self, record: ExecutionRecord) -> bool:
        goes_back_to = self._config.initial_snapshot
        goes_back = goes_back_to is not None and goes_back_to != record.rewound_to
        return record.status is JobStatus.COMPLETED and not goes_back

    def _run_until_ended(self) -> JobResult:
        restarts = Restarts(self._config.restart_attempts_max)
        while True:
            # Asked anew each time: what ended the last execution may have been Spark's own end.
            stop, execution = self._run_one(self._open_session(), restarts)
            if restarts.exhausted:
                self._tell_end(stop, execution)
                raise execution.failure or JetError(f"{stop.reason}.", job=self.name)
            if not stop.restart:
                return self._ended(stop, execution)
            if stop.cause is not StopCause.RESTART:
                self._tell_restart(stop, execution, restarts)
                self._stop_signal.event.wait(restarts.pause_ms / 1000)
                if self._stop_signal.kind is StopKind.SHUTDOWN:
                    # Any other kind needs an execution that carries it out.
                    return self._ended(
                        replace(stop, status=JobStatus.NOT_RUNNING, restart=False), execution
                    )
            # Whatever it was that ended the last one: the next execution is the restart asked for.
            self._stop_signal.restarted()

    def _run_one(self, session: SparkSession, restarts: Restarts) -> tuple[Stop, Execution]:
        if self._keeper is not None:
            with suppress(StoreUnavailableError):  # then the claim will fail, and is tried again
                self._store.refresh()
        keeper = self._keeper = RecordKeeper(
            self._store,
            self.name,
            milliseconds(self._config.lease_ttl),
            self._run_id,
            predecessor=self._keeper,
        )
        execution = Execution(
            job=self.name,
            graph=self._graph,
            config=self._config,
            until=self._until,
            store=self._store,
            session=session,
            keeper=keeper,
            work_dir=self._work_dir / self.name,
            stop=self._stop_signal,
            emit=self._emit,
        )
        stop: Stop | None = None
        try:
            with MembersWatcher(self._store, self.name, self._config, self._stop_signal):
                stop = _or_give_up(execution.run(), restarts)
        finally:
            record = execution.record
            keeper.release(
                replace(
                    record,
                    status=stop.status,
                    cause=stop.cause,
                    failure=_failure_text(stop),
                )
                if stop is not None and stop.write_status and record is not None
                else None
            )
            self._epochs += execution.epochs
        return stop, execution

    def _tell_restart(self, stop: Stop, execution: Execution, restarts: Restarts) -> None:
        self._emit(
            ExecutionRestarting(
                self.name,
                _execution_id(execution),
                stop.reason,
                restarts.attempts,
                restarts.pause_ms,
            )
        )

    def _tell_end(self, stop: Stop, execution: Execution) -> None:
        self._emit(
            ExecutionEnded(
                self.name, _execution_id(execution), stop.status, stop.cause, stop.reason
            )
        )

    def _ended(self, stop: Stop, execution: Execution) -> JobResult:
        self._tell_end(stop, execution)
        if stop.cause is StopCause.FENCED:
            raise FencedError(
                "a newer execution has taken the job over; this one has stopped.", job=self.name
            )
        if execution.failure is not None and stop.status in (JobStatus.FAILED, JobStatus.SUSPENDED):
            raise execution.failure
        if self._stop_signal.kind is None and execution.undecided is not None:
            # Nobody asked it to stop: a run that was to drain has not done so.
            raise SnapshotFailedError(
                f"the last snapshot failed, its output is not committed: {execution.undecided}.",
                job=self.name,
                cure="Run again: the job goes on from the snapshot before.",
            )
        record = execution.record
        assert record is not None
        return self._summary(replace(record, status=stop.status), execution.stages())

    def _totals(self, record: ExecutionRecord) -> dict[str, Counters]:
        """Totals per stage, as the newest snapshot has them."""
        if record.snapshot is None:
            return {}
        return SnapshotStore(self._store, self.name).load(record.snapshot).counters

    def _summary(
        self, record: ExecutionRecord, stages: Mapping[str, Counters | StageProgress]
    ) -> JobResult:
        return JobResult(
            status=record.status,
            rows_in=sum(stages[n.name].rows_in for n in self._graph.sources if n.name in stages),
            rows_out=sum(stages[n.name].rows_out for n in self._graph.sinks if n.name in stages),
            rows_rejected=sum(stage.rejected for stage in stages.values()),
            snapshot_id=record.snapshot.snapshot_id if record.snapshot else None,
            epochs=self._epochs,
            restarts=record.restarts,
        )

    def _emit(self, event: JobEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)


def _or_give_up(stop: Stop, restarts: Restarts) -> Stop:
    """What follows an end: where too many came unasked, no restart, and the record says why."""
    if not stop.restart or stop.cause is StopCause.RESTART:
        return stop
    restarts.failed()
    if not restarts.exhausted:
        return stop
    several = f"gave up after {restarts.attempts} failed executions: "
    return replace(
        stop,
        cause=StopCause.GAVE_UP,
        reason=f"{several if restarts.attempts > 1 else ''}{stop.reason}",
        restart=False,
        # Another status than this one: a write is on its way, and the record not ours to touch.
        write_status=stop.status is JobStatus.NOT_RUNNING,
    )


def _execution_id(execution: Execution) -> int:
    return execution.record.execution_id if execution.record else 0


def _failure_text(stop: Stop) -> str | None:
    is_failure = stop.cause in (StopCause.ERROR, StopCause.GAVE_UP, StopCause.CANCEL)
    return stop.reason if is_failure else None
