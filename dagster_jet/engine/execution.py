"""One execution of one job: polls sources, carries out the coordinator's commands, reports.

The coordinator decides, this file does. It runs on the job's driver thread. Beside it run what
follows a snapshot's acks (`settler.py`), the writing of the sources' journals, which the acks wait
for, and the heartbeat, which belongs to the record's keeper.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.reopening import destination_of, reopen_sink
from dagster_jet.core.failpoint import FailPointError, fail_point
from dagster_jet.core.transient import DENIED, TRANSIENT
from dagster_jet.engine.batch_size import BatchSizer
from dagster_jet.engine.committing import SinkCommitter
from dagster_jet.engine.compatibility import check_compatible
from dagster_jet.engine.config import JobConfig, milliseconds
from dagster_jet.engine.connector import (
    Partitioned,
    Rejection,
    RereadsInput,
    SourceReader,
    check_guarantee,
    on_store,
)
from dagster_jet.engine.early_results import EarlyResults
from dagster_jet.engine.events import (
    EpochCompleted,
    ExecutionStarted,
    InputLost,
    ItemsLost,
    JobEvent,
    SnapshotCommitted,
    SnapshotDropped,
    SnapshotFailed,
    SourceProgress,
    StageProgress,
)
from dagster_jet.engine.record_keeper import RecordKeeper
from dagster_jet.engine.scratch import OWN_LEVELS, make_private
from dagster_jet.engine.settler import Progress, Settled, Settler, Told
from dagster_jet.engine.snapshot_store import SnapshotStore
from dagster_jet.engine.source_journals import SourceJournals
from dagster_jet.engine.spark.barrier import Barrier, saving_folder
from dagster_jet.engine.spark.commit import commit_stages
from dagster_jet.engine.spark.epoch import EpochInput, EpochOutput, EpochRunner, StageInput
from dagster_jet.engine.spark.restore import restore_shards
from dagster_jet.engine.spark.session import (
    activate,
    is_local,
    keeps_workers,
    parallelism,
)
from dagster_jet.engine.state import delete_runs, sweep_dead_executions
from dagster_jet.engine.stopping import StopSignal, Until
from dagster_jet.engine.undecided_input import UndecidedInput
from dagster_jet.engine.watermarks import WatermarkTracker
from dagster_jet.errors import (
    BadRowError,
    ExecutorLostError,
    FencedError,
    InputLostError,
    JetError,
    PipelineError,
    Reaction,
    SourceError,
)
from dagster_jet.pipeline.graph import Graph, SourceNode, TimestampsNode
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator import Coordinator, CoordinatorConfig, Phase, Settling
from dagster_jet.snapshot.manifest import Ack, Manifest, ShardState
from dagster_jet.snapshot.protocol import Guarantee, StopKind
from dagster_jet.snapshot.record import Doing, ExecutionRecord, SnapshotRef, StopCause
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

FEW_GROUPS = 20_000
"""Up to so many (key, window) groups per epoch, one merging task beats several."""

TIMER_PERIOD_MS = 1_000
"""In a lull, from one epoch to the next where a user's processor has timers (`try_process`)."""


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
    ) -> None:
        """`claimed`: the record as `keeper` has won it for this execution."""
        graph = on_store(graph, store)
        self._job, self._graph, self._config, self._until = job, graph, config, until
        self._session, self._keeper, self._stop_signal, self._emit = session, keeper, stop, emit
        self._store, self._claimed = store, claimed
        self._snapshots = SnapshotStore(store, job)
        self._work_root = work_dir
        self._work_dir = work_dir
        self._local = is_local(session)
        self._saves_beside = keeps_workers(session)
        self._shard_count = config.parallelism or parallelism(session)
        rejecting = {n.upstream[0] for n in graph.sinks if n.of_rejects}
        self._readers: dict[str, SourceReader] = {
            node.name: node.source.open(
                job, node.name, self._rejection(node) if node.name in rejecting else None
            )
            for node in graph.sources
        }
        self._runner = EpochRunner(
            session, job, graph, self._readers, self._shard_count, store.partition_count
        )
        self._watermarks = WatermarkTracker(graph, config.max_watermark_retention_ms)
        self._early = EarlyResults(graph)
        target = milliseconds(config.target_epoch_duration)
        self._sizers = {
            name: BatchSizer(target, config.max_items_per_epoch) for name in self._readers
        }
        self._coordinator = Coordinator(
            CoordinatorConfig(
                job=job,
                guarantee=config.guarantee,
                snapshot_interval_ms=milliseconds(config.snapshot_interval),
                retained_snapshots=config.retained_snapshots,
                shards={
                    **{node.name: 1 for node in graph.sources},
                    **{node.name: self._shard_count for node in graph.stages},
                },
                partition_count=store.partition_count,
                plan_fingerprint=graph.fingerprint(),
                suspend_on_failure=config.suspend_on_failure,
                initial_snapshot=config.initial_snapshot,
            )
        )
        self._coordinators_lock = threading.Lock()
        self._committer = SinkCommitter(
            job,
            graph.sinks,
            {node.name: destination_of(node.sink) for node in graph.sinks},
            lambda destination: reopen_sink(destination, store),
            config.accept_loss,
            lambda: self._coordinator.record,
            keeper.fenced,
            self._tell_retried,
            emit,
            stop,
        )
        self._input_ended = until.input_ends
        self._announced = False
        # Without a guarantee there are no snapshots: every start is from scratch.
        takes_snapshots = config.guarantee is not Guarantee.NONE
        self._undecided = UndecidedInput(store, job) if takes_snapshots else None
        self._journals = SourceJournals(self._readers, self._snapshots, self._undecided)
        self._settler = Settler(
            self._handle,
            keeper,
            self._snapshots,
            self._journals,
            self._commit,
            self._failed,
            self._now_ms,
        )
        self._obsolete: list[str] = []
        self._groups = 0
        self._epoch_rows: dict[str, int] = {}
        self._wall_offset = time.time() - time.monotonic()
        self._started_ms = self._now_ms()
        self._epochs = 0
        self._last_epoch_ms = 0
        self._has_timers = False
        self._failure: JetError | None = None
        self._cancelled = False
        self._told_failed = 0

    # --- what the job asks ----------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        return self._epochs

    @property
    def undecided(self) -> str | None:
        """Why epochs of this execution were left without a snapshot; None if none were."""
        if self._coordinator.undecided_epochs == 0:
            return None
        return self._coordinator.last_snapshot_failure

    @property
    def record(self) -> ExecutionRecord:
        return getattr(self._coordinator, "record", self._claimed)

    @property
    def failure(self) -> JetError | None:
        """The error behind a Stop, with everything it names."""
        return self._failure

    def stages(self) -> dict[str, StageProgress]:
        """Totals per named stage as of the last acked epoch."""
        progress = {}
        for node in self._graph:
            if not self._graph.is_named(node.name):
                continue
            c = self._coordinator.counters.get(node.name)
            states = self._coordinator.shards.get(node.name, [])
            is_stage = node.name in self._watermarks.reached_ms
            held = self._watermarks.held_back_by(node.name) if is_stage else None
            progress[node.name] = StageProgress(
                rows_in=c.rows_in if c else 0,
                rows_out=c.rows_out if c else 0,
                late=c.late if c else 0,
                rejected=c.rejected if c else 0,
                watermark_ms=self._watermarks.watermark_ms(node.name) if is_stage else None,
                state_rows=sum(run.rows for state in states for run in state.runs),
                held_back_by=held.source if held else None,
                held_back_partition=held.partition if held else None,
                held_back_since_ms=held.since_ms if held else None,
            )
        return progress

    def sources(self) -> dict[str, SourceProgress]:
        """Position, lag and event time per source."""
        progress = {}
        for name, reader in self._readers.items():
            c = self._coordinator.counters.get(name)
            times = [
                self._watermarks.source_watermark_ms(n.name)
                for n in self._graph.downstream(name)
                if isinstance(n, TimestampsNode)
            ]
            watermark_ms, idle = times[0] if times else (None, False)
            progress[name] = SourceProgress(
                rows_read=c.rows_in if c else 0,
                position=reader.position(),
                lag=dict(reader.waiting().details),
                watermark_ms=watermark_ms,
                idle=idle,
                lost=c.lost if c else 0,
            )
        return progress

    # --- the loop -------------------------------------------------------------------------------

    def run(self) -> protocol.Stop:
        """Runs to the end and returns how it ended, whatever went wrong."""
        pending = deque(self._coordinator.begin())
        try:
            while True:
                while pending:
                    command = pending.popleft()
                    if isinstance(command, protocol.Stop):
                        return command
                    for event in self._execute(command):
                        pending.extend(self._pass_on_cancel())
                        pending.extend(self._handle(event))
                        self._tell_failed_snapshot()
                if self._keeper.fenced.is_set():
                    reason = "a newer execution owns the job"
                    status = self.record.status
                    return protocol.Stop(status, StopCause.FENCED, reason)
                try:
                    pending.extend(self._next_commands())
                except Exception as error:  # noqa: BLE001 - the coordinator decides what follows
                    pending.extend(self._handle(self._failed(error)))
        finally:
            self._committer.give_up()
            self._settler.close()
            self._journals.close()
            self._runner.close()
            if self._work_dir != self._work_root:  # else nothing was claimed: it is not ours
                shutil.rmtree(self._work_dir, ignore_errors=True)

    def _handle(self, event: protocol.Event) -> list[protocol.Command]:
        with self._coordinators_lock:
            commands = self._coordinator.handle(event)
            doing = _doing(self._coordinator.phase, self._coordinator.settling)
            if isinstance(event, protocol.EpochAcked):
                self._keeper.headway.advanced(doing)
            elif not isinstance(event, protocol.Opportunity) or commands:
                self._keeper.headway.at(doing)
            return commands

    def _pass_on_cancel(self) -> Sequence[protocol.Command]:
        """Before whatever else is told: what fails because of a cancel is a cancel."""
        if self._cancelled or self._stop_signal.kind is not StopKind.CANCEL:
            return []
        self._cancelled = True
        return self._handle(protocol.CancelRequested())

    def _next_commands(self) -> Sequence[protocol.Command]:
        """Between epochs: hear what was settled, look at the sources, perhaps wait a little."""
        wait_s = self._config.poll_interval.total_seconds()
        if stops := self._hear(0):
            return stops
        reason = self._keeper.ended_because
        if reason is not None:
            return self._handle(protocol.Failed(reason, True)) or self._hear(wait_s)
        if self._coordinator.phase is not Phase.READY:
            return self._hear(wait_s)
        self._announce_start(None)
        if self._coordinator.settling is Settling.NONE:
            self._keeper.headway.at(Doing.ASKING)
        wants, stop = self._look_around()
        commands = self._handle(protocol.Opportunity(self._now_ms(), wants, stop))
        if commands:
            return commands
        # Nothing to run: the last snapshot is still being settled, or there is no input.
        if self._coordinator.settling is not Settling.NONE:
            return self._hear(wait_s)
        self._keeper.headway.advanced(Doing.IDLE)
        due = self._coordinator.snapshot_due_at_ms()
        if due is not None:
            wait_s = min(wait_s, max(0.001, (due - self._now_ms()) / 1000))
        if stop is None:
            self._stop_signal.event.wait(wait_s)
        else:
            time.sleep(0.005)
        return []

    def _hear(self, wait_s: float) -> list[protocol.Stop]:
        """What the settler has told; waits for the first of it. What ends the execution, if
        anything does."""
        told: Told = None
        try:
            told = self._settler.told.get(wait_s > 0, wait_s)
            while not isinstance(told, protocol.Stop):
                if told is not None:
                    self._announce_snapshot(told)
                told = self._settler.told.get_nowait()
        except queue.Empty:
            pass
        self._tell_failed_snapshot()
        return [told] if isinstance(told, protocol.Stop) else []

    def _look_around(self) -> tuple[bool, StopKind | None]:
        if not self._input_ended:
            self._poll()
        if self._stop_signal.kind is StopKind.COMPLETE:
            self._input_ended = True  # what is there by now, and no more
        now_ms = self._now_ms()
        waiting = [name for name, reader in self._readers.items() if reader.waiting().items > 0]
        self._watermarks.check_time(now_ms, waiting)
        stop = self._stop_signal.kind
        if stop is StopKind.COMPLETE and waiting:
            stop = None  # first everything that is there
        closes = not waiting and self._watermarks.wants_epoch()
        if stop is None and self._until.input_ends and not waiting:
            # The terminal epoch closes what is due; but where the last snapshot has everything
            # there would be none, and what is out would depend on when that snapshot was taken.
            saves = self._coordinator.epochs_since_barrier > 0
            if saves or not closes or self._until.stop is StopKind.COMPLETE:
                stop = self._until.stop
        if stop is None and self._until.duration_s is not None:
            if now_ms - self._started_ms >= self._until.duration_s * 1000:
                stop = StopKind.SHUTDOWN
        wants = bool(waiting) or closes or bool(self._early.due(now_ms)) or self._rings(now_ms)
        return wants, stop

    def _rings(self, now_ms: int) -> bool:
        """Whether it is time for an epoch because of processors with timers, although nothing
        arrives."""
        return self._has_timers and now_ms >= self._last_epoch_ms + TIMER_PERIOD_MS

    def _poll(self) -> None:
        for reader in self._readers.values():
            reader.poll()
        self._expect_partitions()

    def _expect_partitions(self) -> None:
        """After every poll and plan: who holds the watermark back now."""
        now_ms = self._now_ms()
        for node, source in self._runner.partitioned.items():
            reader = self._readers[source]
            assert isinstance(reader, Partitioned)
            self._watermarks.expect(node, reader.partitions(), now_ms)

    def _now_ms(self) -> int:
        """Wall-clock time as of the start, going on monotonically: clock jumps do not matter."""
        return round((self._wall_offset + time.monotonic()) * 1000)

    # --- commands -------------------------------------------------------------------------------

    def _execute(self, command: protocol.Command) -> list[protocol.Event]:
        try:
            return self._dispatch(command)
        except Exception as error:  # noqa: BLE001 - the coordinator decides what follows
            return [self._failed(error)]

    def _failed(self, error: Exception) -> protocol.Failed:
        error = expected(error, self._job)
        self._failure = error
        if isinstance(error, FencedError):
            self._keeper.fenced.set()
        return protocol.Failed(str(error), error.reaction in (Reaction.RESTART, Reaction.RETRY))

    def _dispatch(self, command: protocol.Command) -> list[protocol.Event]:
        match command:
            case protocol.Claim():
                return self._claim()
            case protocol.LoadManifest(ref):
                manifest = self._snapshots.load(ref)
                check_compatible(
                    self._job, manifest, self._runner.plan(), self._store.partition_count
                )
                return [protocol.ManifestLoaded(manifest)]
            case protocol.Restore(manifest):
                return [protocol.Restored(self._restore(manifest))]
            case protocol.Commit() | protocol.WriteRecord():
                return [self._settler.carry_out(command)]
            case protocol.AbortLeftovers(execution_id, keep):
                return [self._abort_leftovers(execution_id, keep)]
            case protocol.RunEpoch():
                return [self._run_epoch(command)]
            case protocol.Publish(epoch_id, artifacts):
                self._committer.commit(
                    artifacts, self._committer.destinations, recovering=False, repeatable=True
                )
                return [protocol.Published(epoch_id)]
            case protocol.AwaitSaved() | protocol.WriteManifest():
                self._settler.begin(command, Progress(self.stages(), self.sources()))
                return []
            case protocol.CollectGarbage():
                self._settler.collect(command)
                return []
            case protocol.Stop():
                return []

    def _rejection(self, source: SourceNode) -> Rejection:
        """A row without event time is as bad as one that cannot be parsed."""
        times = [
            n.timestamps.column
            for n in self._graph.downstream(source.name)
            if isinstance(n, TimestampsNode) and not n.timestamps.of_ingestion
        ]
        return Rejection(tuple(dict.fromkeys(times)))

    def _claim(self) -> list[protocol.Event]:
        record = self._claimed
        self._work_dir = self._work_root / f"{record.execution_id}"
        make_private(self._work_dir.parent, OWN_LEVELS - 1)  # before anything in it is removed
        shutil.rmtree(self._work_dir, ignore_errors=True)
        make_private(self._work_dir)
        sweep_dead_executions(self._work_dir)
        for node in self._graph.sinks:
            check_guarantee(self._config.guarantee, node.sink, self._job, node.name)
            # Without a guarantee there are no snapshots: every start is from scratch.
            is_new = not record.snapshots and self._config.guarantee is not Guarantee.NONE
            node.sink.check(self._job, node.name, is_new_job=is_new)
        activate(self._session)
        self._runner.prepare()
        processors = self._runner.processors
        in_two_phases = [name for name, p in processors.items() if p.commits_in_two_phases]
        self._has_timers = any(processor.has_timers for processor in processors.values())
        if in_two_phases and self._config.guarantee is Guarantee.NONE:
            raise PipelineError(
                "the processor commits with snapshots, and the guarantee is none.",
                job=self._job,
                stage=", ".join(in_two_phases),
                cure="Choose another JobConfig(guarantee=...), or write without preparing.",
            )
        return [
            protocol.Claimed(
                record,
                bool(in_two_phases),
                self._runner.plan(),
                self._committer.destinations,
            )
        ]

    # --- restore, leftovers ---------------------------------------------------------------------

    def _restore(self, manifest: Manifest) -> Mapping[str, tuple[ShardState, ...]]:
        fail_point("restore.begin")
        self._watermarks.restore(manifest.watermarks, self._now_ms())
        shards: dict[str, tuple[ShardState, ...]] = {}
        for name, reader in self._readers.items():
            chains = manifest.shards.get(name, ((),))
            journal = self._snapshots.read_journal(name, chains[0])
            if name in manifest.sources:
                reader.restore(manifest.sources[name], journal)
            self._check_undecided(name, reader)
            shards[name] = (ShardState(chain=chains[0]),)
        stages = {
            name: manifest.shards.get(name, ()) for name in (s.name for s in self._graph.stages)
        }
        for name in stages:
            if name not in self._watermarks.dead_until_ms:
                # An older snapshot does not say what had died: what is dead by today's code.
                reached_ms = self._watermarks.reached_ms[name]
                self._watermarks.bury(name, self._runner.operator(name).dead_until(reached_ms))
        shards.update(
            restore_shards(
                self._session,
                self._runner,
                self._barrier(manifest.execution_id, manifest.epoch_id, with_store=True),
                stages,
                self._watermarks.dead_until_ms,
            )
        )
        fail_point("restore.done")
        return shards

    def _check_undecided(self, name: str, reader: SourceReader) -> None:
        """Is everything there that was read after the snapshot, so that it can be read again?"""
        if self._undecided is None or not isinstance(reader, RereadsInput):
            return
        lost = self._undecided.check(name, reader)
        execution_id = self._coordinator.record.execution_id
        if lost:
            epoch_ids = tuple(dict.fromkeys(one.epoch_id for one in lost))
            shown = tuple(one.shown for one in lost)
            several = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
            if not self._config.accept_loss:
                raise InputLostError(
                    f"input is gone that was read in epochs {', '.join(map(str, epoch_ids))} and "
                    f"is in no decided snapshot: {', '.join(shown[:3])}{several}. It cannot be "
                    "read again, and its rows would be missing.",
                    job=self._job,
                    stage=name,
                    position=shown[0],
                    cure="Put it back as it was (cp -p), or let the job go on without its rows "
                    "with JobConfig(accept_loss=True). Input may be deleted once a committed "
                    "snapshot has it: Jet.consumed_files() says which that is.",
                )
            _logger.warning("job %r, stage %r: lost, as accepted: %s", self._job, name, shown)
            self._emit(InputLost(self._job, execution_id, name, epoch_ids, shown))
        self._undecided.take_over(name, execution_id)

    def _abort_leftovers(
        self, execution_id: int, keep: tuple[SnapshotRef, ...]
    ) -> protocol.LeftoversAborted:
        fail_point("abort.before")
        retained = self._snapshots.load_retained(keep)
        manifests = retained.manifests
        tokens = [a.token for m in manifests.values() for a in m.artifacts]
        self._committer.abort_leftovers(tokens, [m.sinks for m in manifests.values()])
        self._snapshots.delete_unreferenced(execution_id, retained)
        self._tell_damaged(retained.damaged)
        fail_point("abort.after")
        self._poll()
        if keep:
            self._announce_start(keep[0])
        return protocol.LeftoversAborted(
            retained={
                snapshot_id: {v: frozenset(n) for v, n in m.chunk_sets().items()}
                for snapshot_id, m in manifests.items()
            },
            sources={name: reader.position() for name, reader in self._readers.items()},
            watermarks=self._watermarks.to_json(),
            now_ms=self._now_ms(),
            damaged=frozenset(retained.damaged),
        )

    def _tell_damaged(self, damaged: Mapping[int, str]) -> None:
        execution_id = self._coordinator.record.execution_id
        for snapshot_id, reason in damaged.items():
            _logger.warning(
                "%s: snapshot %d can no longer be gone back to: %s", self._job, snapshot_id, reason
            )
            self._emit(SnapshotDropped(self._job, execution_id, snapshot_id, reason))

    def _announce_start(self, restored: SnapshotRef | None) -> None:
        """Once per execution: everything older is settled, data is about to flow."""
        if self._announced:
            return
        self._announced = True
        record = self._coordinator.record
        self._emit(
            ExecutionStarted(
                job=self._job,
                execution_id=record.execution_id,
                restarts=record.restarts,
                restored_snapshot_id=restored.snapshot_id if restored else None,
                restored_epoch_id=restored.epoch_id if restored else None,
                start_duration_ms=self._now_ms() - self._started_ms,
                stages=self.stages(),
                sources=self.sources(),
            )
        )

    # --- epochs ---------------------------------------------------------------------------------

    def _barrier(
        self, execution_id: int, epoch_id: int, *, with_store: bool, snapshot_id: int | None = None
    ) -> Barrier:
        return Barrier(
            job=self._job,
            line=self._coordinator.record.line,
            execution_id=execution_id,
            epoch_id=epoch_id,
            snapshot_id=snapshot_id,
            work_dir=str(self._work_dir),
            partition_count=self._store.partition_count,
            store=self._store.handle() if with_store else None,
            guarantee=self._config.guarantee,
            saves_beside=self._saves_beside,
        )

    def _run_epoch(self, command: protocol.RunEpoch) -> protocol.Event:
        fail_point("epoch.before")
        began = time.monotonic()
        splits: dict[str, Any] = {}
        if not command.terminal or command.final:
            for name, reader in self._readers.items():
                split = reader.plan(self._sizers[name].rows)
                if split is not None:
                    splits[name] = split
            self._expect_partitions()
        if command.snapshot_id is not None:
            # Between snapshots it is empty, and cleaners of temporary folders look for such.
            saving_folder(self._work_dir).mkdir(parents=True, exist_ok=True)
        epoch = EpochInput(
            barrier=self._barrier(
                command.execution_id,
                command.epoch_id,
                with_store=command.snapshot_id is not None,
                snapshot_id=command.snapshot_id,
            ),
            splits=splits,
            stages=self._stage_inputs(final=command.final),
            ingestion_ms=self._watermarks.ingestion_ms(self._now_ms()),
            few_groups=self._local and (self._shard_count == 1 or self._groups <= FEW_GROUPS),
        )
        try:
            output = self._runner.run(epoch, lambda: self._begin_journals(command))
            self._journals.begun()
            acks, rows = self._account(command, epoch, output)
        except JetError as raised:
            error = self._with_position(self._cause_in_input(raised, splits), splits)
            if error.reaction is Reaction.FAIL and not isinstance(error, SourceError):
                self._journals.take_back(command)
            self._failure = error
            restartable = error.reaction in (Reaction.RESTART, Reaction.RETRY)
            return protocol.EpochFailed(
                command.execution_id, command.epoch_id, str(error), restartable
            )
        fail_point("epoch.acked")
        duration_ms = (time.monotonic() - began) * 1000
        for name in splits:
            self._sizers[name].learn(self._epoch_rows.get(name, 0), duration_ms)
        self._epochs += 1
        self._last_epoch_ms = self._now_ms()
        self._emit(
            EpochCompleted(self._job, command.execution_id, command.epoch_id, rows, duration_ms)
        )
        return protocol.EpochAcked(
            command.execution_id,
            command.epoch_id,
            acks,
            {name: reader.position() for name, reader in self._readers.items()},
            self._watermarks.to_json(),
            self._now_ms(),
        )

    def _begin_journals(self, command: protocol.RunEpoch) -> None:
        shards = self._coordinator.shards
        self._journals.begin_epoch(command, {n: shards[n][0].chain for n in self._readers})

    def _stage_inputs(self, *, final: bool) -> dict[str, StageInput]:
        obsolete = () if self._local else tuple(self._obsolete)
        if self._local:
            delete_runs(self._obsolete)
        self._obsolete = []
        early = self._early.due(self._now_ms())
        return {
            stage.name: StageInput(
                shards=tuple(self._coordinator.shards[stage.name]),
                before_ms=self._watermarks.reached_ms[stage.name],
                after_ms=self._watermarks.next_ms(stage.name, final=final),
                dead_until_ms=self._watermarks.dead_until_ms.get(stage.name),
                obsolete=obsolete,
                early=stage.name in early,
            )
            for stage in self._graph.stages
        }

    def _account(
        self, command: protocol.RunEpoch, epoch: EpochInput, output: EpochOutput
    ) -> tuple[tuple[Ack, ...], int]:
        """Checks what came back, moves the watermarks, and lets the sources ack as well."""
        now_ms = self._now_ms()
        rows_of = dict(output.source_rows)
        for name, seen in output.observed.items():
            node, arrived = self._graph[name], seen.arrived
            if arrived.rows != arrived.rows_with_time:
                raise BadRowError(
                    f"{arrived.rows - arrived.rows_with_time} rows have no event time.",
                    job=self._job,
                    stage=node.upstream[0],
                    cure="Every row needs one: correct the input, filter before "
                    "with_timestamps(), or set bad rows aside with dead_letter_to().",
                )
            rows_of[node.upstream[0]] = arrived.rows
        rejected = {
            n.upstream[0]: sum(a.rows_in for a in output.acks if a.vertex == n.name)
            for n in self._graph.sinks
            if n.of_rejects
        }
        for name, split in epoch.splits.items():
            self._readers[name].verify(split, rows_of.get(name, 0) + rejected.get(name, 0))
        for name, seen in output.observed.items():
            rows, top_ms = seen.arrived.rows, seen.arrived.top_event_ms
            self._watermarks.observe(name, rows, top_ms, now_ms, seen.partition_tops_ms)
        for name, stage in epoch.stages.items():
            self._watermarks.reached_ms[name] = stage.after_ms
            self._watermarks.bury(name, self._runner.operator(name).dead_until(stage.after_ms))
        shown = [name for name, stage in epoch.stages.items() if stage.early]
        self._early.acked(shown, output.acks, now_ms)
        self._groups = max((ack.groups for ack in output.acks), default=0)
        self._obsolete.extend(path for ack in output.acks for path in ack.obsolete)
        self._epoch_rows = {
            name: rows_of.get(name, 0) + rejected.get(name, 0) for name in self._readers
        }
        source_acks = [
            self._source_ack(name, command, rows_of.get(name, 0), rejected.get(name, 0))
            for name in self._readers
        ]
        self._tell_lost(source_acks)
        acks = _with_late(output.acks, output.late_rows)
        return (*source_acks, *acks), sum(self._epoch_rows.values())

    def _tell_lost(self, source_acks: Sequence[Ack]) -> None:
        """Never silently: an event now, and counters that every snapshot carries on."""
        for ack in source_acks:
            if ack.lost:
                before = self._coordinator.counters.get(ack.vertex)
                in_all = ack.lost + (before.lost if before else 0)
                execution_id = self._coordinator.record.execution_id
                self._emit(ItemsLost(self._job, execution_id, ack.vertex, ack.lost, in_all))

    def _source_ack(self, name: str, command: protocol.RunEpoch, rows: int, rejected: int) -> Ack:
        reader = self._readers[name]
        chunk_set, error = self._journals.written(name)
        return Ack(
            vertex=name,
            shard=0,
            attempt=f"driver-{command.epoch_id}",
            rows_in=rows + rejected,
            rows_out=rows,
            rejected=rejected,
            lost=reader.take_lost(),
            chunk_set=chunk_set,
            snapshot_error=error,
        )

    def _cause_in_input(self, error: JetError, splits: Mapping[str, Any]) -> JetError:
        """Input that is gone or has changed shows in many ways, none of which says so."""
        for name, split in splits.items():
            reader = self._readers[name]
            if isinstance(reader, RereadsInput):
                try:
                    reader.check_input(split)
                except JetError as cause:
                    cause.__cause__ = error
                    return cause
        return error

    def _with_position(self, error: JetError, splits: Mapping[str, Any]) -> JetError:
        if not isinstance(error, BadRowError) or error.position is not None:
            return error
        for name, split in splits.items():
            position = self._readers[name].locate_bad_row(self._session, split)
            if position is not None:
                return BadRowError(
                    "the row does not fit the source's schema.",
                    job=self._job,
                    stage=name,
                    position=position,
                    cure="Correct the input, or set bad rows aside with dead_letter_to().",
                )
        return error

    # --- what follows a snapshot's acks ---------------------------------------------------------

    def _announce_snapshot(self, settled: Settled) -> None:
        self._keeper.headway.snapshot_settled()
        record, snapshot = self._coordinator.record, settled.snapshot
        self._emit(
            SnapshotCommitted(
                job=self._job,
                execution_id=record.execution_id,
                snapshot_id=snapshot.snapshot_id,
                epoch_id=snapshot.epoch_id,
                restarts=record.restarts,
                phase1_ms=settled.phase1_ms,
                phase2_ms=settled.phase2_ms,
                bytes_written=settled.bytes_written,
                state_bytes=snapshot.state_bytes,
                failed_snapshots=self._coordinator.failed_snapshots,
                stages=settled.progress.stages,
                sources=settled.progress.sources,
            )
        )

    def _tell_failed_snapshot(self) -> None:
        failed = self._coordinator.failed_snapshots
        if failed > self._told_failed:
            self._told_failed = failed
            reason = self._coordinator.last_snapshot_failure or ""
            self._keeper.headway.snapshot_failed(reason)
            self._tell(reason)

    def _tell_retried(self, reason: str) -> None:
        """Of a commit: on whatever thread."""
        self._keeper.headway.met(reason)
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        self._emit(
            SnapshotFailed(
                self._job,
                self._coordinator.record.execution_id,
                reason,
                self._coordinator.failed_snapshots,
            )
        )

    def _commit(self, command: protocol.Commit) -> None:
        """Phase 2, on any thread."""
        record = self._coordinator.record
        assert record.snapshot is not None
        barrier = self._barrier(record.execution_id, record.snapshot.epoch_id, with_store=False)
        shards = {name: tuple(self._coordinator.shards[name]) for name in command.prepared}
        self._committer.commit(command.artifacts, command.sinks, recovering=command.recovering)
        commit_stages(self._runner, barrier, shards)


def _doing(phase: Phase, settling: Settling) -> Doing:
    """What takes longest, of what goes on at the same time: nothing overtakes phase 2."""
    if settling is Settling.COMMITTING or phase is Phase.RECOMMITTING:
        return Doing.COMMITTING
    if settling is not Settling.NONE:
        return Doing.SAVING
    if phase is Phase.IN_EPOCH:
        return Doing.EPOCH
    return Doing.IDLE if phase is Phase.READY else Doing.STARTING


def expected(error: Exception, job: str) -> JetError:
    """The error itself, or one that stands for what nobody foresaw."""
    if isinstance(error, JetError):
        return error
    if isinstance(error, FailPointError):  # a call that fails, and may be made again
        return ExecutorLostError(f"{error}.", job=job)
    if isinstance(error, OSError) and error.errno in TRANSIENT - DENIED:
        return ExecutorLostError(
            f"the driver could not read or write: {error}.",
            job=job,
            cure="Free some space or bring the file system back; meanwhile the job restarts from "
            "its last snapshot.",
        )
    _logger.error("the execution of %s fails", job, exc_info=error)
    cure = "If it does not come from a callback of yours, please report it."
    return JetError(f"the driver raised {type(error).__name__}: {error}.", job=job, cure=cure)


def _with_late(acks: Sequence[Ack], late_rows: Mapping[str, int]) -> list[Ack]:
    """Adds the late rows that were taken out before a stage to the ack of its first shard."""
    missing = {stage: late for stage, late in late_rows.items() if late}
    result = []
    for ack in acks:
        late = missing.pop(ack.vertex, 0)
        result.append(replace(ack, rows_in=ack.rows_in + late, late=ack.late + late))
    return result
