"""A job in this process: its driver thread, its restarts, and the handle that users hold."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_jet.engine.admission import quorum
from dagster_jet.engine.claiming import claim
from dagster_jet.engine.completed import ignored_input
from dagster_jet.engine.config import JobConfig, milliseconds
from dagster_jet.engine.events import (
    ExecutionEnded,
    ExecutionRestarting,
    JobEvent,
    StageProgress,
)
from dagster_jet.engine.execution import Execution, expected
from dagster_jet.engine.lease import is_owner_alive
from dagster_jet.engine.members_repairer import MembersRepairer
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
    Reaction,
    SnapshotFailedError,
    StoreUnavailableError,
)
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.protocol import Stop, StopKind, WriteOutcome
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_logger = logging.getLogger(__name__)


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
    ignored_input: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of a COMPLETED job that was run again: what waits in its sources and is not read."""


@dataclass(frozen=True)
class _Ran:
    """What one execution came to."""

    stop: Stop
    record: ExecutionRecord | None
    """None: it has not won the job."""
    failure: JetError | None
    """The error behind the stop, with everything it names."""
    undecided: str | None = None
    """Why epochs were left without a snapshot; None if none were."""
    stages: Mapping[str, Counters | StageProgress] = field(default_factory=dict)

    @property
    def execution_id(self) -> int:
        return self.record.execution_id if self.record is not None else 0

    @property
    def last_record(self) -> ExecutionRecord | None:
        """What it leaves in the record; None where that is not its to touch."""
        if not self.stop.write_status or self.record is None:
            return None
        cause = self.stop.cause
        is_failure = cause in (StopCause.ERROR, StopCause.GAVE_UP, StopCause.CANCEL)
        failure = self.stop.reason if is_failure else None
        return replace(self.record, status=self.stop.status, cause=cause, failure=failure)

    def not_written(self, job: str) -> _Ran:
        """The same, to be said once more by another execution."""
        error = StoreUnavailableError(
            "that it was asked to stop could not be written down: the job may be started again.",
            job=job,
            cure="Ask for it again when the store answers.",
        )
        return replace(self, stop=replace(self.stop, restart=True), failure=error)


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

    @property
    def is_anothers(self) -> bool:
        """Somebody else drives the job: this process never had it, or has lost it.

        Raises:
            StoreUnavailableError: too few members answer.
        """
        keeper = self._keeper
        if keeper is not None and keeper.last_execution_id is not None:
            return keeper.fenced.is_set()
        record = self.record
        if record is None or not record.status.is_live or record.lease is None:
            return False
        return is_owner_alive(record.lease) is not False

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
            return self._still_completed(record)
        last_execution_id = record.execution_id if record is not None else 0
        with (
            RequestWatcher(
                self._store, self.name, self._stop_signal, last_execution_id=last_execution_id
            ),
            MembersRepairer(
                self._store,
                self.name,
                self._config.member_timeout_s,
                self._emit,
                fewest=self._fewest_members(record),
            ) as repairer,
        ):
            return self._run_until_ended(repairer)

    def _fewest_members(self, record: ExecutionRecord | None) -> int:
        if not self._config.split_brain_protection:
            return 0
        seen = record.members_max if record is not None else 0
        return quorum(max(seen, len(self._store.table.members)))

    def _stays_completed(self, record: ExecutionRecord) -> bool:
        goes_back_to = self._config.initial_snapshot
        goes_back = goes_back_to is not None and goes_back_to != record.rewound_to
        return record.status is JobStatus.COMPLETED and not goes_back

    def _still_completed(self, record: ExecutionRecord) -> JobResult:
        if record.snapshot is None:
            return self._summary(record, {})
        manifest = SnapshotStore(self._store, self.name).load(record.snapshot)
        ignored = list(ignored_input(self.name, self._graph, self._store, manifest))
        for event in ignored:
            _logger.warning(
                "job %r is COMPLETED and reads nothing more, although input waits in %r: %s",
                self.name,
                event.source,
                event.waiting,
            )
            self._emit(event)
        waiting = {event.source: event.waiting for event in ignored}
        return replace(self._summary(record, manifest.counters), ignored_input=waiting)

    def _run_until_ended(self, repairer: MembersRepairer) -> JobResult:
        restarts = Restarts(self._config.restart_attempts_max)
        while True:
            asked_before = self._stop_signal.kind
            ran = self._run_one(restarts, repairer)
            if restarts.exhausted:
                self._tell_end(ran)
                raise ran.failure or JetError(f"{ran.stop.reason}.", job=self.name)
            if not ran.stop.restart:
                return self._ended(ran)
            if ran.stop.cause is not StopCause.RESTART:
                self._tell_restart(ran, restarts)
                # What had been asked for before could not be carried out: no reason to hurry.
                self._stop_signal.wait_for_another(asked_before, restarts.pause_ms / 1000)
                repairer.wait(partial(self._stop_signal.wait_for_another, asked_before))
            # Whatever it was that ended the last one: the next execution is the restart asked for.
            self._stop_signal.restarted()

    def _run_one(self, restarts: Restarts, repairer: MembersRepairer) -> _Ran:
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
        ran: _Ran | None = None
        try:
            with MembersWatcher(self._store, self.name, self._config, self._stop_signal):
                ran = self._execute(keeper)
            # What fails while a member is away, and is about to be repaired around, is not counted.
            if not (ran.stop.restart and repairer.expects_repair()):
                ran = self._or_give_up(ran, restarts)
        finally:
            outcome = keeper.release(ran.last_record if ran is not None else None)
        is_unsaid = outcome in (WriteOutcome.UNAVAILABLE, WriteOutcome.UNKNOWN)
        is_cancelled = self._stop_signal.kind is StopKind.CANCEL
        if (is_unsaid and ran.stop.cause.stays_down) or (
            is_cancelled and ran.stop.cause is StopCause.UNDECIDED
        ):
            # Crash window: nobody knows of it yet, and a supervisor would start the job again.
            restarts.failed()
            ran = ran.not_written(self.name)
        return ran

    def _execute(self, keeper: RecordKeeper) -> _Ran:
        """One execution, from the lease to its end."""
        try:
            claimed = claim(keeper, self._store, self.name, self._config)
            kind = self._stop_signal.kind
            if kind in (StopKind.SHUTDOWN, StopKind.CANCEL):
                # Nothing is open: it needs no Spark to be carried out, only the record.
                reason = "it was asked to stop before it began"
                stop = Stop(kind.final_status, kind.cause, reason, write_status=True)
                return _Ran(stop, claimed, None, stages=self._totals(claimed))
            execution = Execution(
                job=self.name,
                graph=self._graph,
                config=self._config,
                until=self._until,
                store=self._store,
                # Asked anew each time: what ended the last one may have been Spark's own end.
                session=self._open_session(),
                keeper=keeper,
                claimed=claimed,
                work_dir=self._work_dir / self.name,
                stop=self._stop_signal,
                emit=self._emit,
            )
        except Exception as error:  # noqa: BLE001 - the record says what a start failed of
            return self._not_begun(keeper, expected(error, self.name))
        try:
            stop = execution.run()
        finally:
            self._epochs += execution.epochs
        return _Ran(
            stop, execution.record, execution.failure, execution.undecided, execution.stages()
        )

    def _not_begun(self, keeper: RecordKeeper, error: JetError) -> _Ran:
        """A start that has failed before anything was restored."""
        asked = self._stop_signal.kind
        if error.reaction is Reaction.STOP:
            keeper.fenced.set()
            stop = Stop(JobStatus.NOT_RUNNING, StopCause.FENCED, str(error))
        elif asked is StopKind.SHUTDOWN or (asked is StopKind.CANCEL and keeper.record):
            stop = Stop(asked.final_status, asked.cause, str(error), write_status=True)
        elif error.reaction in (Reaction.RESTART, Reaction.RETRY):
            stop = Stop(JobStatus.NOT_RUNNING, StopCause.ERROR, str(error), restart=True)
        else:
            suspends = self._config.suspend_on_failure
            status = JobStatus.SUSPENDED if suspends else JobStatus.FAILED
            stop = Stop(status, StopCause.ERROR, str(error), write_status=True)
        return _Ran(stop, keeper.record, error)

    def _or_give_up(self, ran: _Ran, restarts: Restarts) -> _Ran:
        """What follows an end: where too many came unasked, no restart, and the record says so."""
        stop = ran.stop
        if not stop.restart or stop.cause is StopCause.RESTART:
            return ran
        restarts.failed()
        if not restarts.exhausted:
            return ran
        several = f"gave up after {restarts.attempts} failed executions: "
        given_up = replace(
            stop,
            cause=StopCause.GAVE_UP,
            reason=f"{several if restarts.attempts > 1 else ''}{stop.reason}",
            restart=False,
            # Another status than this one: a write is on its way, and the record not ours to touch.
            write_status=stop.status is JobStatus.NOT_RUNNING,
        )
        return replace(ran, stop=given_up)

    def _tell_restart(self, ran: _Ran, restarts: Restarts) -> None:
        self._emit(
            ExecutionRestarting(
                self.name, ran.execution_id, ran.stop.reason, restarts.attempts, restarts.pause_ms
            )
        )

    def _tell_end(self, ran: _Ran) -> None:
        stop = ran.stop
        if ran.record is not None:
            self._emit(
                ExecutionEnded(self.name, ran.execution_id, stop.status, stop.cause, stop.reason)
            )

    def _ended(self, ran: _Ran) -> JobResult:
        self._tell_end(ran)
        stop, failure = ran.stop, ran.failure
        if stop.cause is StopCause.FENCED:
            if failure is not None and failure.reaction is Reaction.STOP:
                raise failure
            raise FencedError(  # whatever else it met once its successor had swept its files
                "a newer execution has taken the job over; this one has stopped.", job=self.name
            ) from failure
        has_failed = stop.status in (JobStatus.FAILED, JobStatus.SUSPENDED)
        if failure is not None and has_failed and stop.cause is not StopCause.CANCEL:
            raise failure
        if self._stop_signal.kind is None and ran.undecided is not None:
            # Nobody asked it to stop: a run that was to drain has not done so.
            raise SnapshotFailedError(
                f"the last snapshot failed, its output is not committed: {ran.undecided}.",
                job=self.name,
                cure="Run again: the job goes on from the snapshot before.",
            )
        if ran.record is None:  # asked to stop while the job could not even be asked for
            raise failure or JetError(f"{stop.reason}.", job=self.name)
        return self._summary(replace(ran.record, status=stop.status), ran.stages)

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
