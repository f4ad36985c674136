"""Runs epochs and polls the sources between them, on one thread of the driver.

Spark's session, its local properties and the gateway's connection are bound to a thread, so this
thread lives as long as the execution.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dagster_jet.contract import Backlog
from dagster_jet.core.phases import Phase, PhaseClock, PhaseTime
from dagster_jet.errors import FencedError, JetError, SourceError
from dagster_jet.execution.acknowledging import unacknowledged
from dagster_jet.execution.context import ExecutionContext
from dagster_jet.execution.early_results import EarlyResults
from dagster_jet.execution.epoch_accounting import EpochAccounting
from dagster_jet.execution.epoch_planner import EpochPlanner, Inputs, PollRequest, StageTime
from dagster_jet.execution.epoch_size import EpochSizer
from dagster_jet.execution.events import EpochCompleted
from dagster_jet.execution.failures import Failures, may_pass
from dagster_jet.execution.input_failures import cause_in_input, with_position
from dagster_jet.execution.notifications import Polled
from dagster_jet.execution.polled_sources import PolledSources
from dagster_jet.execution.progress import Progress
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.task_times import task_times
from dagster_jet.job_config import milliseconds
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.protocol import Guarantee, RunEpoch
from dagster_jet.snapshot.store_reactions import StoreCall
from dagster_jet.spark.epoch import EpochRunner
from dagster_jet.spark.epoch_contract import EpochInput, EpochOutput
from dagster_jet.spark.tasks.barrier import saving_folder
from dagster_jet.spark.tasks.own_watermark import OwnWatermark
from dagster_jet.spark.tasks.stage_input import StageInput
from dagster_jet.state.runs import delete_runs
from dagster_jet.system.failpoint import fail_point

_logger = logging.getLogger(__name__)

FEW_GROUPS = 20_000
"""Up to this number of (key, window) groups per epoch, one merging task is faster than several."""
SPARED_ROWS = 20_000
SPARED_BYTES = 8 << 20
"""One reading task needs no new frames and no shuffle. It is faster than several tasks as long as
they would take less than this number of rows and bytes off it."""
_CATCH_UP = 10
"""Largest epoch duration during a backlog, as a multiple of the target duration."""


@dataclass
class EpochDriver:
    """Runs the epochs of one execution, on the epochs' thread."""

    context: ExecutionContext
    sources: PolledSources
    journals: SourceJournals
    acknowledge: Callable[[Mapping[str, Mapping[str, Any]]], object]
    early: EarlyResults
    planner: EpochPlanner
    progress: Progress
    failures: Failures
    restart: Callable[[], None]
    """Requests a graceful restart of the execution."""
    epochs: int = 0
    """Number of acked epochs."""
    _accounting: EpochAccounting = field(init=False)
    _last_epoch_ms: int = 0
    _rows_taken_ms: int = 0
    """When the last epoch with input was planned, by wall clock."""
    _items: dict[str, int] = field(default_factory=dict)
    """Items that the last epoch has taken from sources that count gaps."""
    _spreads: bool = False
    """Whether it has requested a restart because executors have joined."""

    def __post_init__(self) -> None:
        self._accounting = EpochAccounting(self.context, self.sources, self.journals, self.early)

    @cached_property
    def _sizer(self) -> EpochSizer:
        """Creates the sizer at the first epoch, when the executors and their memory are known."""
        config = self.context.config
        target_ms = milliseconds(config.target_epoch_duration)
        return EpochSizer(
            target_ms=target_ms,
            catch_up_ms=_CATCH_UP * target_ms,
            source_rows_max=config.max_items_per_epoch,
            bytes_max=self.context.runtime.epoch_bytes_max,
        )

    @cached_property
    def _runner(self) -> EpochRunner:
        return EpochRunner(self.context.plan, self.context.runtime)

    # --- between epochs -------------------------------------------------------------------------

    def poll(self, request: PollRequest) -> protocol.Event | Polled:
        """Polls the sources and returns the available input."""
        sources, watermarks = self.sources, self.sources.watermarks
        try:
            if request.polls and request.waits_for_all:
                sources.poll_last()
            else:
                sources.poll(all_of_them=False)
            backlogs = sources.polling.backlogs()
            now_ms = self.context.clock.now_ms()
            waiting = frozenset(n for n, r in sources.readers.items() if r.waiting().items > 0)
            watermarks.check_time(now_ms, waiting, sources.polling.silent)
            self.progress.publish_if_due()
            self._spread_if_outgrown()
            return Polled(
                Inputs(
                    request,
                    now_ms,
                    waiting,
                    stages=self._stage_times(),
                    early_due=bool(self.early.due(now_ms)),
                    last_epoch_ms=self._last_epoch_ms,
                    always_rings=self._has_timers,
                    clocks_ms=watermarks.clocks_ms(now_ms),
                    backlog=frozenset(backlogs),
                    is_held=Backlog.HELD in backlogs.values(),
                )
            )
        except Exception as error:  # noqa: BLE001 - the coordinator decides what follows
            return self.failures.event(error)

    def _spread_if_outgrown(self) -> None:
        """Executors have joined: the next execution gives them shards. Without snapshots it would
        lose state."""
        context = self.context
        if self._spreads or context.config.guarantee is Guarantee.NONE:
            return
        if context.runtime.is_outgrown:
            self._spreads = True
            _logger.info("job %r restarts, to use the executors that have joined", context.job)
            self.restart()

    @property
    def _has_timers(self) -> bool:
        return any(processor.has_timers for processor in self.context.plan.processors.values())

    def _stage_times(self) -> dict[str, StageTime]:
        watermarks = self.sources.watermarks
        elapsed_ms = self.context.clock.now_ms() - self._rows_taken_ms
        return {
            stage.name: StageTime(
                watermarks.reached_ms[stage.name],
                watermarks.floored_ms(stage.name),
                watermarks.expected_ms(stage.name, elapsed_ms),
            )
            for stage in self.context.graph.stages
        }

    # --- one epoch ------------------------------------------------------------------------------

    def run(self, command: RunEpoch, view: CoordinatorView) -> protocol.Event:
        """Runs one epoch, from the plan of the sources to the acks of all tasks. A crash leaves run
        files, chunks and staged files that no manifest names."""
        try:
            return self._run(command, view)
        except Exception as error:  # noqa: BLE001 - the coordinator decides what follows
            return self.failures.event(error)

    def _run(self, command: RunEpoch, view: CoordinatorView) -> protocol.Event:
        context, sources, readers = self.context, self.sources, self.sources.readers
        fail_point("epoch.before")
        clock = PhaseClock(time.monotonic)
        began = time.monotonic()
        splits, few_rows = self._plan(command)
        chains = {name: view.shards[name][0].chain for name in readers}
        epoch = self._epoch(command, view, splits, few_rows=few_rows)
        clock.end(Phase.PLANNING)
        if splits:
            self._rows_taken_ms = context.clock.now_ms()
        try:

            def meanwhile() -> None:
                self.journals.begin_epoch(command, chains)
                if not command.terminal:
                    sources.polling.ask()

            output = self._runner.run(epoch, meanwhile, clock)
            self.journals.begun()
            counted = self._accounting.account(command, epoch, output, view)
            tables = {} if command.snapshot_id is None else self._versions(command)
        except JetError as raised:
            cause = cause_in_input(raised, splits, readers)
            error = with_position(cause, splits, context.graph, context.runtime)
            restartable = may_pass(error, StoreCall.STAGING)
            if not (restartable or isinstance(error, SourceError | FencedError)):
                self.journals.take_back(command, error.position)
            self.failures.expected(error)
            return protocol.EpochFailed(
                command.execution_id, command.epoch_id, str(error), restartable
            )
        fail_point("epoch.acked")
        duration_ms = (time.monotonic() - began) * 1000
        if splits:
            taken = sum(self._items.get(name, counted.rows[name]) for name in splits)
            self._sizer.learn(taken, duration_ms)
        if context.config.guarantee is Guarantee.NONE:
            self.acknowledge(unacknowledged(readers))  # there are no snapshots to wait for
        self.epochs += 1
        self._last_epoch_ms = context.clock.now_ms()
        self.progress.publish()
        rows = sum(counted.rows.values())
        execution_id, epoch_id = command.execution_id, command.epoch_id
        # Read before the positions: an id that is acknowledged meanwhile is in both then.
        left = unacknowledged(readers)
        clock.end(Phase.CHECKING)
        times = self._times(clock, output)
        context.emit(EpochCompleted(context.job, execution_id, epoch_id, rows, duration_ms, times))
        return protocol.EpochAcked(
            execution_id,
            epoch_id,
            counted.acks,
            {name: reader.position() for name, reader in readers.items()},
            sources.watermarks.to_json(),
            context.clock.now_ms(),
            left,
            tables,
        )

    def _versions(self, command: RunEpoch) -> Mapping[str, dict[str, Any]]:
        return self.context.runtime.tables.noted(is_last=command.terminal)

    def _times(self, clock: PhaseClock, output: EpochOutput) -> tuple[PhaseTime, ...]:
        context, action_ms = self.context, clock.ms.get(Phase.ACTION, 0.0)
        sinks = [node.name for node in context.graph.sinks]
        return (*clock.times(), *task_times(output.acks, action_ms, context.runtime.cores, sinks))

    def _plan(self, command: RunEpoch) -> tuple[dict[str, Any], bool]:
        """Returns the splits, and whether they have few rows."""
        splits, rows, bytes = {}, 0, 0
        self._items = {}
        if self.planner.takes_input(command):
            readers = self.sources.readers
            waiting = {name: reader.waiting() for name, reader in readers.items()}
            shares = self._sizer.shares(waiting)
            for name, reader in readers.items():
                split = reader.plan(shares[name])
                if split is not None:
                    splits[name] = split
                    before, after = waiting[name], reader.waiting()
                    if reader.counts_gaps:
                        self._items[name] = before.items - after.items
                    rows += before.items - after.items
                    bytes += (before.bytes or 0) - (after.bytes or 0)
            self.sources.expect_partitions()
        others = 1 - 1 / self.context.runtime.cores  # the share of the rows of the other tasks
        return splits, rows * others <= SPARED_ROWS and bytes * others <= SPARED_BYTES

    def _epoch(
        self,
        command: RunEpoch,
        view: CoordinatorView,
        splits: Mapping[str, Any],
        *,
        few_rows: bool,
    ) -> EpochInput:
        context, record = self.context, view.record
        assert record is not None
        if command.snapshot_id is not None:
            # It is empty between snapshots, and cleaners of temporary folders remove empty folders.
            saving_folder(context.work_dir).mkdir(parents=True, exist_ok=True)
        shards = max((len(view.shards[stage.name]) for stage in context.graph.stages), default=1)
        is_local = context.runtime.is_local
        few_groups = is_local and (shards == 1 or self._accounting.groups <= FEW_GROUPS)
        has_own = not command.final and (few_groups or shards == 1)
        watermarks = self.sources.watermarks
        now_ms = context.clock.now_ms()
        clock_ms = watermarks.next_clock_ms(now_ms)
        return EpochInput(
            barrier=context.barrier(
                record,
                command.epoch_id,
                with_store=command.snapshot_id is not None,
                snapshot_id=command.snapshot_id,
            ),
            splits=splits,
            stages=self._stage_inputs(
                view, now_ms, self._own_watermarks(splits) if has_own else {}, final=command.final
            ),
            ingestion_ms=watermarks.ingestion_ms(now_ms),
            latest_ms=watermarks.latest_ms(clock_ms),
            clock_ms=clock_ms,
            few_groups=few_groups,
            few_rows=few_rows,
        )

    def _stage_inputs(
        self,
        view: CoordinatorView,
        now_ms: int,
        own: Mapping[str, OwnWatermark | None],
        *,
        final: bool,
    ) -> dict[str, StageInput]:
        context, watermarks = self.context, self.sources.watermarks
        obsolete = self._accounting.take_obsolete()
        if context.runtime.is_local:
            delete_runs(obsolete)
            obsolete = ()
        early, clocks_ms = self.early.due(now_ms), watermarks.clocks_ms(now_ms)
        after_ms = self.planner.watermarks(self._stage_times(), final=final)
        return {
            stage.name: StageInput(
                shards=view.shards[stage.name],
                before_ms=watermarks.reached_ms[stage.name],
                after_ms=after_ms[stage.name],
                expired_until_ms=watermarks.expired_until_ms.get(stage.name),
                obsolete=obsolete,
                early=stage.name in early,
                clock_ms=clocks_ms.get(stage.name),
                own_watermark=None if stage.follows_clock else own.get(stage.name),
            )
            for stage in context.graph.stages
        }

    def _own_watermarks(self, splits: Mapping[str, Any]) -> dict[str, OwnWatermark | None]:
        """Event time by stage, for tasks that advance their watermark by the epoch's own rows."""
        plan, readers, watermarks = self.context.plan, self.sources.readers, self.sources.watermarks
        counted_by, read = dict(plan.counted_by), {}
        for node, source in plan.partitioned.items():
            if source in splits:
                parameters = readers[source].split_parameters(splits[source])
                if parameters is None:
                    counted_by.pop(node, None)
                else:
                    read[node] = parameters.partitions
        return {
            stage.name: watermarks.own_watermark(stage.name, counted_by, read)
            for stage in self.context.graph.stages
        }
