"""The two-phase snapshot protocol without I/O: events in, commands out.

No I/O, no clock, no threads, no randomness. The caller executes the commands and reports their
results, with the time where it matters. The loop (`execution/loop.py`) is the only caller in
production; the simulator in ``tests/simulation`` drives it with crashes between any two steps.

Three machines with tables of legal moves: `Recovery` until data flows, then `EpochCycle`, and
beside it `PendingSnapshot`. The coordinator routes events and decides the execution's end.

Invariant: nothing that a task writes counts until the record names it, and everything that the
record names is made visible after any crash.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.ending import Ending
from dagster_jet.snapshot.epoch_cycle import CycleState, EpochCycle
from dagster_jet.snapshot.job_state import CoordinatorConfig, JobState
from dagster_jet.snapshot.manifest import Counters, ShardState
from dagster_jet.snapshot.pending_snapshot import PendingSnapshot, PendingState, SnapshotOutcome
from dagster_jet.snapshot.protocol import (
    CancelRequested,
    Claim,
    Claimed,
    Command,
    Completed,
    Decided,
    EpochAcked,
    EpochFailed,
    Event,
    Failed,
    ManifestLoaded,
    OrphansAborted,
    Published,
    Purpose,
    RecordAnswer,
    Restored,
    SnapshotImported,
    Stop,
    StopKind,
    Tick,
    WriteOutcome,
    WriteRecord,
)
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from dagster_jet.snapshot.recovery import Recovery, RecoveryState


class Coordinator:
    """One execution of one job, from claim to stop. Not thread-safe: use it on one thread.

    Args:
        config: the protocol's settings.
        recovery, cycle, pending, ending: the machines it is made of; tests plant bugs in them.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        recovery: type[Recovery] = Recovery,
        cycle: type[EpochCycle] = EpochCycle,
        pending: type[PendingSnapshot] = PendingSnapshot,
        ending: type[Ending] = Ending,
    ) -> None:
        self.config = config
        self.job = JobState(config, ending(config.suspend_on_failure))
        self.pending = pending(self.job)
        self.recovery = recovery(self.job, self.pending)
        self.cycle = cycle(self.job, self.pending)

    # --- entry points ---------------------------------------------------------------------------

    def begin(self) -> list[Command]:
        return [Claim()]

    def handle(self, event: Event) -> list[Command]:
        """Applies one event. Answers of a dead execution or of a past step are ignored."""
        if self.cycle.state is CycleState.STOPPED:
            return []
        commands = self._handle(event)
        outcome = self.pending.take_outcome()
        if outcome is not None:
            commands += self._after_decision(outcome)
        if _ends(commands):
            self.cycle.become(CycleState.STOPPED)
        return commands

    def _handle(self, event: Event) -> list[Command]:
        match event:
            case Claimed():
                return self.recovery.on_claimed(event)
            case ManifestLoaded(manifest):
                return self.recovery.on_manifest_loaded(manifest)
            case SnapshotImported():
                return self.recovery.on_imported(event)
            case Restored():
                return self.recovery.on_restored(event)
            case OrphansAborted():
                return self._on_orphans_aborted(event)
            case Decided():
                return self._on_decided(event)
            case Completed():
                return self._on_completed(event)
            case Tick():
                return self.cycle.on_tick(event)
            case CancelRequested():
                return self._on_cancel_requested()
            case EpochAcked():
                return self.cycle.on_epoch_acked(event)
            case EpochFailed():
                return self.cycle.on_epoch_failed(event)
            case Published():
                return self.cycle.on_published(event)
            case RecordAnswer():
                return self._on_record_answer(event)
            case Failed():
                return self._on_failed(event)

    # --- views ----------------------------------------------------------------------------------

    def view(self) -> CoordinatorView:
        """A frozen view of the current state, for other threads."""
        job, pending = self.job, self.pending
        return CoordinatorView(
            recovery=self.recovery.state,
            cycle=self.cycle.state,
            pending=pending.state,
            record=job.record if self.recovery.state is not RecoveryState.CLAIMING else None,
            shards={vertex: tuple(states) for vertex, states in job.shards.items()},
            counters=dict(job.counters),
            epochs_since_barrier=job.epochs_since_barrier,
            undecided_epochs=job.epochs_since_barrier + pending.epochs,
            snapshot_due_at_ms=self.cycle.snapshot_due_at_ms(),
            is_failing=job.ending.failed_meanwhile is not None,
            failures=pending.failures,
            last_failure=pending.last_failure,
        )

    @property
    def record(self) -> ExecutionRecord:
        """The record as last agreed on; set by `Claimed`."""
        return self.job.record

    @property
    def shards(self) -> dict[str, list[ShardState]]:
        return self.job.shards

    @property
    def counters(self) -> dict[str, Counters]:
        return self.job.counters

    # --- from recovery to epochs ----------------------------------------------------------------

    def _on_orphans_aborted(self, event: OrphansAborted) -> list[Command]:
        if not self.recovery.on_orphans_aborted(event):
            return []
        job = self.job
        if self.recovery.restores_the_end:
            job.ending.asked = StopKind.COMPLETE
            return [job.ending.as_asked()]
        if job.record.snapshots or self.config.guarantee is Guarantee.NONE:
            self.cycle.become(CycleState.READY)
            if job.record.status is not JobStatus.STARTING:
                return []
            job.record = replace(job.record, status=JobStatus.RUNNING)
            return [WriteRecord(Purpose.RUNNING, job.record)]
        # A new job: pin its starting positions against a crash before the first regular snapshot.
        self.cycle.become(CycleState.AWAITING_DECISION)
        snapshot_id = self.pending.take_id()
        return self.pending.begin((), event.now_ms, completed=False, snapshot_id=snapshot_id)

    def _on_failed(self, event: Failed) -> list[Command]:
        if self.recovery.is_finished_before(event):
            self.job.ending.failed_meanwhile = self.job.ending.failed_meanwhile or event
            return []
        return self.cycle.fail(event)

    # --- the record's answers -------------------------------------------------------------------

    def _on_record_answer(self, event: RecordAnswer) -> list[Command]:
        ending = self.job.ending
        if event.outcome is WriteOutcome.FENCED:
            # The lease may be lost before the record is ours to look at.
            is_claiming = self.recovery.state is RecoveryState.CLAIMING
            return [ending.fenced(None if is_claiming else self.record)]
        match event.purpose:
            case Purpose.STARTING:
                return self.recovery.on_ids_reserved(event)
            case Purpose.REWOUND:
                return self.recovery.on_rewound(event)
            case Purpose.RESERVED:
                return self.pending.on_more_ids_reserved(event)
            case _:
                return []  # nothing waits for the status RUNNING

    def _on_decided(self, event: Decided) -> list[Command]:
        ending = self.job.ending
        if event.outcome is WriteOutcome.FENCED:
            return [ending.fenced(self.record)]
        if event.outcome is not WriteOutcome.UNKNOWN:
            return self.pending.on_decided(event)
        return [ending.undecided(self.record)] if self.pending.is_deciding(event) else []

    def _on_completed(self, event: Completed) -> list[Command]:
        is_claiming = self.recovery.state is RecoveryState.CLAIMING
        if is_claiming or event.execution_id != self.record.execution_id:
            return []
        if event.outcome is WriteOutcome.FENCED:
            return [self.job.ending.fenced(self.record)]
        if self.recovery.state is not RecoveryState.OVER:
            return self.recovery.on_completed(event)
        return self._after_completion() if self.pending.on_completed(event) else []

    def _after_decision(self, outcome: SnapshotOutcome) -> list[Command]:
        self.cycle.on_outcome()
        if outcome is SnapshotOutcome.DISCARDED:
            commands = self._after_discarded(self.pending.last_failure or "")
        elif self.pending.state is PendingState.NONE:
            commands = self._after_completion()
        else:
            commands = []
        failed = self.job.ending.failed_meanwhile
        if failed is not None and not _ends(commands):
            commands += self.cycle.fail(failed)
        return commands

    def _after_discarded(self, reason: str) -> list[Command]:
        job = self.job
        if job.record.snapshot is None and job.epoch_id == 0:
            return [job.ending.failed(f"the first snapshot failed: {reason}", restartable=True)]
        if job.ending.asked is not None:
            # Ends although the terminal snapshot failed: the job resumes from the last one.
            return [job.ending.without_snapshot(reason)]
        if job.decides_every_epoch:
            # Prepared transactions are in our shards' state, and the next epoch would commit them.
            return [job.ending.failed(f"a snapshot failed: {reason}", restartable=True)]
        return self.pending.reserve_ids()

    def _after_completion(self) -> list[Command]:
        """Once the newest snapshot is committed. In an epoch the stop waits for the next tick."""
        is_between = self.cycle.state is CycleState.READY
        ending = self.job.ending
        if is_between and ending.asked is not None:
            return [ending.as_asked()]
        return self.cycle.fail(ending.failed_meanwhile) if ending.failed_meanwhile else []

    # --- cancel ---------------------------------------------------------------------------------

    def _on_cancel_requested(self) -> list[Command]:
        """Marks the execution as cancelled, whatever ends it from here on."""
        ending = self.job.ending
        if ending.asked is StopKind.COMPLETE:
            ending.is_cancelled = True  # its last epoch runs: the cancel counts only if that fails
            return []
        ending.asked = StopKind.CANCEL
        # Elsewhere a pending answer or the next `Tick` ends it.
        return [ending.as_asked()] if self.recovery.can_be_left else []


def _ends(commands: list[Command]) -> bool:
    return any(isinstance(command, Stop) for command in commands)
