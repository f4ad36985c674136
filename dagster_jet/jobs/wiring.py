"""Puts the parts of one execution together: the one place that knows them all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from dagster_jet.connectors.pages import pages_of
from dagster_jet.connectors.reopening import destination_of, reopen_sink
from dagster_jet.contract import BadRowRule
from dagster_jet.core.cadence import PERIOD_MS, SPARING_PERIOD_MS
from dagster_jet.core.job_context import Parameters
from dagster_jet.execution.acknowledging import acknowledge
from dagster_jet.execution.clock import Clock
from dagster_jet.execution.commit_reports import CommitReports
from dagster_jet.execution.context import ExecutionContext
from dagster_jet.execution.cut_publisher import publisher_of
from dagster_jet.execution.dispatch import Dispatch
from dagster_jet.execution.early_results import EarlyResults
from dagster_jet.execution.epoch_driver import EpochDriver
from dagster_jet.execution.epoch_planner import EpochPlanner
from dagster_jet.execution.events import JobEvent
from dagster_jet.execution.execution import Execution
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.loop import Loop
from dagster_jet.execution.polled_sources import PolledSources
from dagster_jet.execution.progress import Progress
from dagster_jet.execution.recovery_driver import RecoveryDriver
from dagster_jet.execution.retrying import Retrying
from dagster_jet.execution.signals import Signals
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.source_polling import SourcePolling
from dagster_jet.execution.start_connectors import (
    at_start,
    effective_guarantee,
    formerly,
    on_store,
    open_reader,
)
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.execution.undecided_input import UndecidedInput
from dagster_jet.execution.watermarks import WatermarkTracker
from dagster_jet.exports.exporting import Exporting
from dagster_jet.job_config import milliseconds
from dagster_jet.jobs.job_order import Order
from dagster_jet.observe.writing.announcer import Announcer
from dagster_jet.observe.writing.profile_keeper import ProfileKeeper
from dagster_jet.observe.writing.recent_timings import RecentTimings
from dagster_jet.observe.writing.report_keeper import ReportKeeper
from dagster_jet.observe.writing.stopwatch import EpochStopwatch, SnapshotStopwatch
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.pipeline.graph import Graph, SourceNode, TimestampsNode
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.job_state import CoordinatorConfig
from dagster_jet.snapshot.protocol import Guarantee, StopKind
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.spark.cluster.executors import await_executors
from dagster_jet.spark.cluster.session import is_local, parallelism, spread_shuffles
from dagster_jet.spark.commit import carry_out, commit_stages
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.system.scratch import remove_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

_FIRST_EPOCH_MS = 3_000
"""Expected duration of the first epoch, which loads and compiles what later ones find warm."""

_POLL_INTERVAL_MS = 200
"""Interval of polling sources for new input while there is none."""


def wire(
    order: Order,
    session: SparkSession,
    keeper: RecordKeeper,
    claimed: ExecutionRecord,
    stop: StopSignal,
    emit: Callable[[JobEvent], None],
    exporting: Exporting,
) -> Execution:
    """Returns an execution that can run.

    Args:
        claimed: the record as `keeper` has won it for this execution.
        emit: is told every event of the job, on the driver's thread.

    Raises:
        JetError: a connector cannot be opened, or refuses the job.
    """
    job, store = order.job, order.store
    starting = Retrying(job, keeper.fenced, stop, partial(_report_waiting, job, keeper))
    graph = at_start(
        on_store(order.graph, store), job, on_one_host=is_local(session), ask=starting.ask
    )
    signals = Signals(job, claimed, keeper, stop)
    graph = formerly(graph, order.options.renamed)
    context = _context(order, graph, session, signals)
    now_ms, failures = context.clock.now_ms, Failures(job, pages_of(graph))
    retrying = Retrying(job, keeper.fenced, stop, signals.report_retried, signals.is_failing)
    committer, snapshots = _committer(context, signals, retrying), SnapshotStore(store, job)
    sources, journals = _inputs(context, signals, snapshots)
    progress = Progress(graph, sources)
    planner = EpochPlanner(
        order.until, _POLL_INTERVAL_MS, output_stages=context.graph.output_stages()
    )
    acknowledging = partial(acknowledge, sources.polling, retrying)
    early = EarlyResults(graph)
    epochs = EpochDriver(
        context,
        sources,
        journals,
        acknowledging,
        early,
        planner,
        progress,
        failures,
        partial(stop.request, StopKind.RESTART),
    )
    ends, stages = order.until.input_ends, partial(_commit_stages, context)
    publish, end_publishing = publisher_of(
        context,
        committer,
        claimed.execution_id,
        order.epochs_table,
        order.epochs_storage_options,
    )
    recovery = RecoveryDriver(
        context, claimed, snapshots, sources, journals, committer, progress, ends, publish
    )
    snapshot_driver = SnapshotDriver(
        keeper.write,
        snapshots,
        journals,
        committer,
        stages,
        acknowledging,
        failures,
        now_ms,
        publish,
    )
    dispatch = Dispatch(job, recovery, epochs, snapshot_driver, failures, signals.post, exporting)
    observer = _observer(context, signals, keeper, progress, committer, failures, emit)
    coordinator = Coordinator(_coordinator_config(order, context))
    loop = Loop(coordinator, planner, dispatch, stop, observer, now_ms, exporting)
    resources = ExitStack()  # closes the last one first
    execution = Execution(
        signals,
        loop,
        epochs,
        progress,
        observer,
        exporting,
        failures,
        committer.abort_own,
        resources,
    )
    resources.callback(remove_private, context.work_dir)
    for close in (
        context.runtime.close,
        committer.close,
        journals.close,
        execution.leave_nothing_open,
        end_publishing,
        dispatch.close,
        sources.polling.close,
        dispatch.close_epochs,
    ):
        resources.callback(close)
    return execution


def _context(
    order: Order, graph: Graph, session: SparkSession, signals: Signals
) -> ExecutionContext:
    rejecting = {n.upstream[0] for n in graph.sinks if n.of_dead_letters}
    readers = {
        node.name: open_reader(
            node, order.job, _bad_row_rule(graph, node) if node.name in rejecting else None
        )
        for node in graph.sources
    }
    if not is_local(session):
        await_executors(session)  # before their cores are counted
        spread_shuffles(session, order.spark)
    shard_count = order.config.parallelism or max(parallelism(session), order.shards_min)
    return ExecutionContext(
        order.job,
        graph,
        order.config,
        order.options,
        order.store,
        order.work_dir / f"{signals.claimed.execution_id}",
        Clock(),
        SparkRuntime(session, order.job, readers, shard_count, Parameters(order.config.parameters)),
        signals.emit,
    )


def _inputs(
    context: ExecutionContext, signals: Signals, snapshots: SnapshotStore
) -> tuple[PolledSources, SourceJournals]:
    job, config, readers = context.job, context.config, context.runtime.readers
    takes_snapshots = config.guarantee is not Guarantee.NONE
    undecided = UndecidedInput(context.store, job) if takes_snapshots else None
    polling = SourcePolling(
        job,
        readers,
        context.clock.now_ms,
        signals.report_outage,
        signals.owner.activity_tracker.source_away,
    )
    watermarks = WatermarkTracker(context.graph, milliseconds(config.max_watermark_retention))
    sources = PolledSources(
        context.clock.now_ms,
        lambda: context.plan.partitioned,
        polling,
        watermarks,
        signals.gives_up_waiting,
    )
    return sources, SourceJournals(readers, snapshots, undecided)


def _committer(context: ExecutionContext, signals: Signals, retrying: Retrying) -> SinkCommitter:
    sinks, options = context.graph.sinks, context.options
    return SinkCommitter(
        context.job,
        sinks,
        {node.name: destination_of(node.sink) for node in sinks},
        lambda destination: reopen_sink(destination, context.store),
        options,
        signals.record,
        retrying,
        CommitReports(context.job, signals.record, signals.emit),
        partial(carry_out, context.runtime),
    )


def _observer(
    context: ExecutionContext,
    signals: Signals,
    keeper: RecordKeeper,
    progress: Progress,
    committer: SinkCommitter,
    failures: Failures,
    emit: Callable[[JobEvent], None],
) -> Announcer:
    timings, seconds, now_ms = RecentTimings(), time.monotonic, context.clock.now_ms
    store, job, execution_id = context.store, context.job, signals.claimed.execution_id

    def emit_safely(event: JobEvent) -> None:
        """A callback of the user's that raises ends the execution in order."""
        try:
            emit(event)
        except Exception as error:  # noqa: BLE001 - the coordinator decides what follows
            signals.post(failures.event(error))

    return Announcer(
        job,
        keeper.activity_tracker,
        progress,
        EpochStopwatch(timings, seconds),
        SnapshotStopwatch(timings),
        ProfileKeeper(store, job, execution_id, timings, seconds, now_ms),
        ReportKeeper(
            store,
            job,
            execution_id,
            progress,
            lambda: committer.pending(now_ms()),
            seconds,
            now_ms,
        ),
        emit_safely,
        now_ms,
    )


def _coordinator_config(order: Order, context: ExecutionContext) -> CoordinatorConfig:
    config, graph, shard_count = order.config, context.graph, context.runtime.shard_count
    is_sparing = any(node.sink.commits_sparingly for node in graph.sinks)
    return CoordinatorConfig(
        job=order.job,
        guarantee=config.guarantee,
        snapshot_interval_ms=milliseconds(config.snapshot_interval),
        retained_snapshots=config.retained_snapshots,
        shards={
            **{node.name: 1 for node in graph.sources},
            **{node.name: shard_count for node in graph.stages},
        },
        partition_count=order.store.partition_count,
        plan_fingerprint=graph.fingerprint(),
        published_sinks=frozenset(
            node.name
            for node in graph.sinks
            if effective_guarantee(config.guarantee, node.sink) is not Guarantee.EXACTLY_ONCE
        ),
        holds={n.name: rule for n in graph.sinks if (rule := n.sink.hold_back()) is not None},
        suspend_on_failure=config.suspend_on_failure,
        initial_snapshot=order.options.initial_snapshot,
        renamed=order.options.renamed,
        first_epoch_ms=_FIRST_EPOCH_MS,
        snapshot_period_ms=SPARING_PERIOD_MS if is_sparing else PERIOD_MS,
    )


def _commit_stages(
    context: ExecutionContext, stages: Collection[str], view: CoordinatorView
) -> None:
    record = view.record
    assert record is not None and record.snapshot is not None
    barrier = context.barrier(record, record.snapshot.epoch_id, with_store=False)
    shards = {name: view.shards[name] for name in stages}
    commit_stages(context.runtime, context.plan, barrier, shards)


def _bad_row_rule(graph: Graph, source: SourceNode) -> BadRowRule:
    """A row without event time is as bad as one that cannot be parsed."""
    times = [
        n.timestamps.column
        for n in graph.downstream(source.name)
        if isinstance(n, TimestampsNode) and not n.timestamps.of_ingestion
    ]
    return BadRowRule(tuple(dict.fromkeys(times)))


def _report_waiting(job: str, keeper: RecordKeeper, reason: str) -> None:
    """Tells the lease that a start is being retried, and the log once for each reason."""
    if keeper.activity_tracker.retries(reason):
        _logger.warning("job %r waits to start: %s", job, reason)
