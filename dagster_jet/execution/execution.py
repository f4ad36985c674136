"""One execution of one job: puts the loop and its drivers together, and runs the loop."""

from __future__ import annotations

import logging
import queue
import shutil
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_jet.connectors.contract import BadRowRule, at_start, effective_guarantee, on_store
from dagster_jet.connectors.pages import pages_of
from dagster_jet.connectors.reopening import destination_of, reopen_sink
from dagster_jet.errors import JetError
from dagster_jet.execution.acknowledging import acknowledge
from dagster_jet.execution.announcer import Announcer
from dagster_jet.execution.context import Clock, ExecutionContext
from dagster_jet.execution.dispatch import Dispatch
from dagster_jet.execution.early_results import EarlyResults
from dagster_jet.execution.epoch_driver import EpochDriver
from dagster_jet.execution.epoch_planner import EpochPlanner
from dagster_jet.execution.events import (
    JobEvent,
    SnapshotFailed,
    SourceAvailable,
    SourceUnavailable,
    StageProgress,
)
from dagster_jet.execution.exporting import Exporting
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.loop import Loop
from dagster_jet.execution.notifications import Emitted, Notification, Woken
from dagster_jet.execution.profile_keeper import ProfileKeeper
from dagster_jet.execution.progress import Progress
from dagster_jet.execution.recent_laps import RecentLaps
from dagster_jet.execution.recovery_driver import RecoveryDriver
from dagster_jet.execution.report_keeper import ReportKeeper
from dagster_jet.execution.retrying import Retrying
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.source_polling import Outage, SourcePolling
from dagster_jet.execution.stopping import StopSignal, Until
from dagster_jet.execution.stopwatch import EpochStopwatch, SnapshotStopwatch
from dagster_jet.execution.undecided_input import UndecidedInput
from dagster_jet.execution.watermarks import WatermarkTracker
from dagster_jet.job_config import JobConfig, milliseconds
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.pipeline.graph import Graph, SourceNode, TimestampsNode
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.job_state import CoordinatorConfig
from dagster_jet.snapshot.protocol import Guarantee, Stop, StopKind
from dagster_jet.snapshot.record import ExecutionRecord, StopCause
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.spark.cluster.session import is_local, parallelism
from dagster_jet.spark.commit import carry_out, commit_stages
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

_FIRST_EPOCH_MS = 3_000
"""It loads and compiles what the others find warm."""


class Execution:
    """Runs until the coordinator stops. One instance per execution id."""

    def __init__(
        self,
        *,
        job: str,
        graph: Graph,
        config: JobConfig,
        until: Until,
        store: Store,
        session: SparkSession,
        keeper: RecordKeeper,
        claimed: ExecutionRecord,
        work_dir: Path,
        stop: StopSignal,
        emit: Callable[[JobEvent], None],
        exporting: Exporting,
    ) -> None:
        """`claimed`: the record as `keeper` has won it for this execution."""
        starting = Retrying(job, keeper.fenced, stop, partial(_report_waiting, job, keeper))
        graph = at_start(
            on_store(graph, store), job, on_one_host=is_local(session), ask=starting.ask
        )
        self._inbox: queue.SimpleQueue[Notification] = queue.SimpleQueue()
        self._job, self._keeper, self._claimed, self._stop = job, keeper, claimed, stop
        self._emit, self._exporting = emit, exporting
        self._is_closing = False
        clock, failures = Clock(), Failures(job, pages_of(graph))
        shard_count = config.parallelism or parallelism(session)
        snapshots = SnapshotStore(store, job)
        rejecting = {n.upstream[0] for n in graph.sinks if n.of_dead_letters}
        readers = {
            node.name: node.source.open(
                job, node.name, _bad_row_rule(graph, node) if node.name in rejecting else None
            )
            for node in graph.sources
        }
        runtime = SparkRuntime(session, job, readers, shard_count)
        retrying = Retrying(job, keeper.fenced, stop, self._report_retried)
        committer = SinkCommitter(
            job,
            graph.sinks,
            {node.name: destination_of(node.sink) for node in graph.sinks},
            lambda destination: reopen_sink(destination, store),
            config.accept_loss,
            lambda: self.record,
            retrying,
            self._post_event,
            config.refused_to_dead_letters,
            partial(carry_out, runtime),
        )
        takes_snapshots = config.guarantee is not Guarantee.NONE
        undecided = UndecidedInput(store, job) if takes_snapshots else None
        self._context = ExecutionContext(
            job=job,
            graph=graph,
            config=config,
            store=store,
            work_dir=work_dir / f"{claimed.execution_id}",
            clock=clock,
            snapshots=snapshots,
            readers=readers,
            polling=SourcePolling(
                job, readers, clock.now_ms, self._report_outage, keeper.headway.source_away
            ),
            runtime=runtime,
            watermarks=WatermarkTracker(graph, config.max_watermark_retention_ms),
            early=EarlyResults(graph),
            undecided=undecided,
            journals=SourceJournals(readers, snapshots, undecided),
            retrying=retrying,
            committer=committer,
            failures=failures,
            emit=self._post_event,
            gives_up=self._gives_up_waiting,
        )
        planner = EpochPlanner(until, milliseconds(config.poll_interval), clock.now_ms())
        self._progress = Progress(self._context)
        self._epochs = EpochDriver(self._context, planner, self._progress)
        snapshot_driver = SnapshotDriver(
            keeper.write,
            snapshots,
            self._context.journals,
            committer,
            self._commit_stages,
            partial(acknowledge, self._context),
            failures,
            clock.now_ms,
        )
        recovery = RecoveryDriver(self._context, claimed, self._progress, until.input_ends)
        self._dispatch = Dispatch(
            recovery, self._epochs, snapshot_driver, failures, self._inbox.put, exporting
        )
        laps, seconds = RecentLaps(), time.monotonic
        self._profile = ProfileKeeper(store, job, claimed.execution_id, laps, seconds, clock.now_ms)
        self._reports = ReportKeeper(
            store,
            job,
            claimed.execution_id,
            self._progress,
            lambda: committer.pending(clock.now_ms()),
            seconds,
            clock.now_ms,
        )
        self._loop = Loop(
            Coordinator(_coordinator_config(job, graph, config, store, shard_count)),
            planner,
            self._dispatch,
            stop,
            Announcer(
                job,
                keeper.headway,
                self._progress,
                EpochStopwatch(laps, seconds),
                SnapshotStopwatch(laps),
                self._profile,
                self._reports,
                self._emit_here,
                clock.now_ms,
            ),
            clock.now_ms,
            exporting,
        )

    # --- what the job asks ----------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """How many were acked."""
        return self._epochs.epochs

    @property
    def undecided(self) -> str | None:
        """Why epochs of this execution were left without a snapshot; None if none were."""
        view = self._loop.view
        return view.last_failure if view.undecided_epochs else None

    @property
    def left_undecided(self) -> bool:
        """Whether epochs of this execution are in no decided snapshot."""
        return self._loop.view.undecided_epochs > 0

    @property
    def has_decided(self) -> bool:
        """Whether this execution has brought the job on by a snapshot."""
        newest = self.record.snapshot
        return newest is not None and newest.execution_id == self._claimed.execution_id

    @property
    def record(self) -> ExecutionRecord:
        """As it was last agreed on."""
        return self._loop.view.record or self._claimed

    @property
    def failure(self) -> JetError | None:
        """The error behind a Stop, with everything it names."""
        return self._context.failures.last

    def stages(self) -> dict[str, StageProgress]:
        """Totals per named stage as of the last acked epoch."""
        return self._progress.stages(self._loop.view)

    # --- the loop -------------------------------------------------------------------------------

    def run(self) -> Stop:
        """Runs to the end and returns how it ended, whatever went wrong."""
        self._stop.listen(lambda: self._inbox.put(Woken()))
        self._keeper.listen(self._inbox.put)
        self._exporting.follow(lambda: self._loop.view)
        try:
            self._loop.begin()
            while self._loop.ended is None:
                self._loop.receive(self._next_notification())
            if self._loop.ended.cause is StopCause.FENCED:
                self._keeper.fenced.set()  # whoever has noticed it: the lease is not renewed
            return self._loop.ended
        finally:
            self._close()

    def _next_notification(self) -> Notification | None:
        wait_ms = self._loop.wait_ms()
        try:
            return self._inbox.get(timeout=None if wait_ms is None else wait_ms / 1000)
        except queue.Empty:
            return None

    def _close(self) -> None:
        self._stop.listen(None)
        self._keeper.listen(None)
        self._exporting.follow(None)
        self._is_closing = True
        self._dispatch.close_epochs()
        self._context.polling.close()
        self._dispatch.close()
        self._profile.close()
        self._reports.close(self._loop.view)
        self._context.journals.close()
        self._context.committer.close()
        self._context.runtime.close()
        shutil.rmtree(self._context.work_dir, ignore_errors=True)
        while not self._inbox.empty():
            last = self._inbox.get()
            if isinstance(last, Emitted):
                self._emit_here(last.event)

    def _emit_here(self, event: JobEvent) -> None:
        """A callback of the user's that raises ends the execution in order."""
        try:
            self._emit(event)
        except Exception as error:  # noqa: BLE001 - the coordinator decides what follows
            self._inbox.put(self._context.failures.event(error))

    # --- from other threads ---------------------------------------------------------------------

    def _post_event(self, event: JobEvent) -> None:
        self._inbox.put(Emitted(event))

    def _report_retried(self, reason: str) -> None:
        """Of a commit."""
        self._keeper.headway.met(reason)
        view = self._loop.view
        execution_id = self._claimed.execution_id
        self._post_event(SnapshotFailed(self._job, execution_id, reason, view.failures))

    def _report_outage(self, outage: Outage, is_over: bool) -> None:
        if is_over:
            self._post_event(SourceAvailable(self._job, outage.source, outage.since_ms))
            return
        _logger.warning("job %r waits for its source: %s", self._job, outage.reason)
        since_ms, reason = outage.since_ms, outage.reason
        self._post_event(SourceUnavailable(self._job, outage.source, since_ms, reason))

    def _gives_up_waiting(self) -> bool:
        """Whether a source that does not answer is not to be waited for any longer."""
        is_stopped = self._stop.kind not in (None, StopKind.COMPLETE)
        return is_stopped or self._keeper.is_lost or self._is_closing

    def _commit_stages(self, stages: Collection[str], view: CoordinatorView) -> None:
        record = view.record
        assert record is not None and record.snapshot is not None
        barrier = self._context.barrier(record, record.snapshot.epoch_id, with_store=False)
        shards = {name: view.shards[name] for name in stages}
        commit_stages(self._context.runtime, self._context.plan, barrier, shards)


def _coordinator_config(
    job: str, graph: Graph, config: JobConfig, store: Store, shard_count: int
) -> CoordinatorConfig:
    return CoordinatorConfig(
        job=job,
        guarantee=config.guarantee,
        snapshot_interval_ms=milliseconds(config.snapshot_interval),
        retained_snapshots=config.retained_snapshots,
        shards={
            **{node.name: 1 for node in graph.sources},
            **{node.name: shard_count for node in graph.stages},
        },
        partition_count=store.partition_count,
        plan_fingerprint=graph.fingerprint(),
        published_sinks=frozenset(
            node.name
            for node in graph.sinks
            if effective_guarantee(config.guarantee, node.sink) is not Guarantee.EXACTLY_ONCE
        ),
        suspend_on_failure=config.suspend_on_failure,
        initial_snapshot=config.initial_snapshot,
        first_epoch_ms=_FIRST_EPOCH_MS,
    )


def _bad_row_rule(graph: Graph, source: SourceNode) -> BadRowRule:
    """A row without event time is as bad as one that cannot be parsed."""
    times = [
        n.timestamps.column
        for n in graph.downstream(source.name)
        if isinstance(n, TimestampsNode) and not n.timestamps.of_ingestion
    ]
    return BadRowRule(tuple(dict.fromkeys(times)))


def _report_waiting(job: str, keeper: RecordKeeper, reason: str) -> None:
    """Of a start; the lease says it, too."""
    keeper.headway.met(reason)
    _logger.warning("job %r waits to start: %s", job, reason)
