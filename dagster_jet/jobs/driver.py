"""Runs executions of a pipeline in this process, one after another, until one ends the job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dagster_jet.errors import JetError, Reaction, StoreUnavailableError
from dagster_jet.execution.events import (
    ExecutionEnded,
    ExecutionRestarting,
    InitialSnapshotSkipped,
    JobEvent,
)
from dagster_jet.execution.failures import expected, may_pass
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.exports.exporting import Exporting
from dagster_jet.jobs.claiming import claim
from dagster_jet.jobs.ended import EndedExecution
from dagster_jet.jobs.job import JobResult
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.members_repairer import MembersRepairer
from dagster_jet.jobs.members_watcher import MembersWatcher
from dagster_jet.jobs.restarts import WINDOW_S, Restarts
from dagster_jet.jobs.totals import result_of
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.protocol import Stop, StopKind, WriteOutcome
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, StopCause
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.snapshot.store_reactions import StoreCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


class Driver:
    """Begins executions and handles their ends. One thread."""

    def __init__(
        self,
        order: Order,
        open_session: Callable[[], SparkSession],
        emit: Callable[[JobEvent], None],
        run_id: str | None,
        exporting: Exporting,
    ) -> None:
        self._order, self._job, self._store = order, order.job, order.store
        self._open_session, self._exporting = open_session, exporting
        self._emit, self._run_id = emit, run_id
        self._definition = order.graph.definition()
        self._epochs = 0
        self._has_claimed = False
        self._expired: Lease | None = None
        self._began: float | None = None
        """When the run's first epoch could begin, by the monotonic clock; None: not yet."""
        self.keeper: RecordKeeper | None = None
        """The newest execution's keeper; None before the first."""
        self._resting: RecordKeeper | None = None
        """The keeper that renews the lease until the next execution has claimed the job."""

    def run(
        self, stop: StopSignal, repairer: MembersRepairer, expired: Lease | None = None
    ) -> JobResult:
        """Returns the job's result once an execution has ended the job.

        Args:
            expired: a dead owner's lease, which was seen to expire: the claim does not wait for it.

        Raises:
            JetError: the error that ended the job.
        """
        self._expired, self._began = expired, None
        try:
            return self._run_all(stop, repairer)
        finally:
            self._end_rest()

    def abandon(self) -> None:
        """Gives up the right to decide, on any thread; the record stays."""
        for keeper in (self._resting, self.keeper):
            if keeper is not None:
                keeper.abandon()

    def _run_all(self, stop: StopSignal, repairer: MembersRepairer) -> JobResult:
        restarts = Restarts(self._order.config.restart_attempts_max)
        while True:
            asked_before = stop.kind
            ended = self._run_one(stop, restarts, repairer)
            if restarts.exhausted:
                self._announce_end(ended)
                raise ended.failure or JetError(f"{ended.stop.reason}.", job=self._job)
            if not ended.stop.restart:
                self._announce_end(ended)
                return self._result(ended, stop.kind)
            if ended.stop.cause is not StopCause.RESTART:
                self._announce_restart(ended, restarts)
                # An earlier request could not be carried out; only another one ends the pause.
                stop.wait_for_another(asked_before, _pause_ms(ended, restarts) / 1000)
                repairer.wait(partial(stop.wait_for_another, asked_before))
            # The next execution is the requested restart, whatever ended this one.
            stop.restarted()

    def _run_one(
        self, stop: StopSignal, restarts: Restarts, repairer: MembersRepairer
    ) -> EndedExecution:
        if self.keeper is not None:
            with suppress(StoreUnavailableError):  # then the claim fails, and is tried again
                self._store.refresh()
        keeper = self.keeper = RecordKeeper(
            self._store,
            self._job,
            self._store.config.lease_ttl_ms,
            self._run_id,
            predecessor=self.keeper,
            definition=self._definition,
            expired=self._expired,
        )
        ended: EndedExecution | None = None
        try:
            with MembersWatcher(self._store, self._job, stop):
                ended = self._execute(keeper, stop)
            # Failures while a member is away and about to be repaired around are not counted, nor
            # is an executor that a cluster loses now and then.
            expected_loss = ended.has_lost_executors or repairer.expects_repair()
            if not (ended.stop.restart and expected_loss):
                ended = self._or_give_up(ended, restarts)
        finally:
            outcome = self._let_go(keeper, ended)
        is_unsaid = outcome in (WriteOutcome.UNAVAILABLE, WriteOutcome.UNKNOWN)
        is_cancelled = _cancels(stop.kind)
        if (is_unsaid and ended.stop.cause.stays_down) or (
            is_cancelled and ended.stop.cause is StopCause.UNDECIDED
        ):
            # Crash window: the stop is not recorded, so a supervisor would start the job again.
            restarts.failed()
            ended = ended.not_written(self._job)
        return ended

    def _let_go(self, keeper: RecordKeeper, ended: EndedExecution | None) -> WriteOutcome:
        """Writes the end of an execution. Before a pause others are to see that this process lives;
        a write whose outcome is unknown is left to the next claim."""
        if (
            ended is not None
            and ended.stop.restart
            and ended.stop.cause is StopCause.ERROR
            and keeper.record is not None
            and not keeper.is_lost
        ):
            keeper.rest(ended.stop.reason)
            self._end_rest()  # of an earlier one, if this one's claim ended with an error
            self._resting = keeper
            return WriteOutcome.WRITTEN
        return keeper.release(ended.last_record if ended is not None else None)

    def _end_rest(self) -> None:
        if self._resting is not None:
            self._resting.release(None)
            self._resting = None

    def _execute(self, keeper: RecordKeeper, asked: StopSignal) -> EndedExecution:
        """Runs one execution, from the lease to its end."""
        try:
            from dagster_jet.jobs.wiring import wire  # loads Spark

            claimed = claim(keeper, self._store, self._job, self._order.options)
            self._end_rest()
            self._announce_claim(claimed)
            kind = asked.kind
            decided = claimed.snapshot
            owes_commit = decided is not None and not decided.is_all_committed
            if kind is StopKind.SHUTDOWN or (kind is StopKind.CANCEL and not owes_commit):
                # Nothing is open, so the stop needs only the record and no Spark.
                reason = "it was asked to stop before it began"
                stop = Stop(kind.final_status, kind.cause, reason, write_status=True)
                return EndedExecution(stop, claimed, None, stages=self._totals(claimed))
            execution = wire(
                self._order_now(),
                # Opened per execution: Spark's own end may have ended the last one.
                self._open_session(),
                keeper,
                claimed,
                asked,
                self._emit,
                self._exporting,
            )
        except Exception as error:  # noqa: BLE001 - the record says what a start failed of
            return self._not_begun(keeper, asked.kind, expected(error, self._job))
        self._order = replace(self._order, shards_min=execution.shard_count)
        try:
            stop = execution.run()
        finally:
            self._epochs += execution.epochs
            if self._began is None and execution.running_ms is not None:
                self._began = time.monotonic() - execution.running_ms / 1000
        was_well = keeper.healthy_ms >= 1000 * WINDOW_S and not execution.left_undecided
        return EndedExecution(
            stop,
            execution.record,
            execution.failure,
            execution.undecided,
            execution.has_decided or was_well,
            execution.stages(),
        )

    def _order_now(self) -> Order:
        """The order with what is left of its time: a restart does not begin it anew."""
        if self._began is None:
            return self._order
        until = self._order.until.after(time.monotonic() - self._began)
        return replace(self._order, until=until)

    def _not_begun(
        self, keeper: RecordKeeper, asked: StopKind | None, error: JetError
    ) -> EndedExecution:
        """The end of a start that failed before anything was restored."""
        if error.reaction is Reaction.STOP:
            keeper.fenced.set()
            stop = Stop(JobStatus.NOT_RUNNING, StopCause.FENCED, str(error))
        elif asked is StopKind.SHUTDOWN or (_cancels(asked) and keeper.record):
            assert asked is not None
            stop = Stop(asked.final_status, asked.cause, str(error), write_status=True)
        elif may_pass(error, StoreCall.START):
            stop = Stop(JobStatus.NOT_RUNNING, StopCause.ERROR, str(error), restart=True)
        else:
            suspends = self._order.config.suspend_on_failure
            status = JobStatus.SUSPENDED if suspends else JobStatus.FAILED
            stop = Stop(status, StopCause.ERROR, str(error), write_status=True)
        return EndedExecution(stop, keeper.record, error)

    def _or_give_up(self, ended: EndedExecution, restarts: Restarts) -> EndedExecution:
        """After too many unrequested ends: no restart, and the record says so."""
        if not ended.stop.restart or ended.stop.cause is StopCause.RESTART:
            return ended
        restarts.failed(progressed=ended.progressed)
        return ended.given_up(restarts.attempts) if restarts.exhausted else ended

    def _announce_claim(self, claimed: ExecutionRecord) -> None:
        """Says once, before anything slow, that an earlier start has gone back already."""
        wanted = None if self._has_claimed else self._order.options.initial_snapshot
        self._has_claimed = True
        skipped = InitialSnapshotSkipped.by(claimed, wanted)
        if skipped is not None:
            _logger.warning("job %r: %s", self._job, skipped.text)
            self._emit(skipped)

    def _announce_restart(self, ended: EndedExecution, restarts: Restarts) -> None:
        self._emit(
            ExecutionRestarting(
                self._job,
                ended.execution_id,
                ended.stop.reason,
                restarts.attempts,
                _pause_ms(ended, restarts),
            )
        )

    def _announce_end(self, ended: EndedExecution) -> None:
        stop = ended.stop
        if ended.record is not None:
            self._emit(
                ExecutionEnded(self._job, ended.execution_id, stop.status, stop.cause, stop.reason)
            )

    def _totals(self, record: ExecutionRecord) -> dict[str, Counters]:
        """Totals per stage as of the newest snapshot."""
        if record.snapshot is None:
            return {}
        return SnapshotStore(self._store, self._job).load(record.snapshot).counters

    def _result(self, ended: EndedExecution, asked: StopKind | None) -> JobResult:
        record = ended.final_record(self._job, asked)
        if self._order.until.input_ends and asked is None:
            if record.status is JobStatus.NOT_RUNNING:
                record = replace(record, status=JobStatus.DRAINED)
        return result_of(
            record,
            ended.stages,
            sources=[node.name for node in self._order.graph.sources],
            sinks=[node.name for node in self._order.graph.sinks],
            epochs=self._epochs,
        )


def _pause_ms(ended: EndedExecution, restarts: Restarts) -> int:
    """The pause before the next execution: what is left of a cluster can go on at once."""
    return 0 if ended.has_lost_executors else restarts.pause_ms


def _cancels(asked: StopKind | None) -> bool:
    """Whether the job is to stay down as cancelled."""
    return asked is not None and asked.cause is StopCause.CANCEL
