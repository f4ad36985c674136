"""Recovery: the steps of a start before data flows, in the order of protocol.md section 4.

CLAIMING -> RESERVING -> LOADING -> RESTORING -> [REWINDING] -> [RECOMMITTING] -> ABORTING
RESERVING -> IMPORTING -> RESTORING -> REWINDING   (it begins with an exported snapshot)
RESERVING -> ABORTING                              (there is no snapshot)
LOADING -> [RECOMMITTING] -> ABORTING              (guarantee "none": nothing is restored)
ABORTING -> OVER
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import ClassVar

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.snapshot.job_state import JobState
from dagster_jet.snapshot.machine import Machine, Moves
from dagster_jet.snapshot.manifest import Manifest, ShardState
from dagster_jet.snapshot.newest_output import output_after
from dagster_jet.snapshot.pending_snapshot import PendingSnapshot
from dagster_jet.snapshot.protocol import (
    AbortOrphans,
    Claimed,
    Command,
    Complete,
    Completed,
    Failed,
    ImportSnapshot,
    LoadManifest,
    OrphansAborted,
    Purpose,
    RecordAnswer,
    Restore,
    Restored,
    SnapshotImported,
    StopKind,
    WriteOutcome,
    WriteRecord,
)
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.snapshot.retention import Retention


class RecoveryState(Enum):
    """Progress of a start."""

    CLAIMING = "claiming the record"
    RESERVING = "reserving snapshot ids"
    LOADING = "loading the manifest"
    IMPORTING = "copying an exported snapshot"
    RESTORING = "restoring state and positions"
    REWINDING = "writing the record that leaves newer snapshots"
    RECOMMITTING = "committing what a dead execution has decided"
    ABORTING = "rolling back what older executions left open"
    OVER = "over: data may flow"

    @property
    def can_be_left(self) -> bool:
        """Whether the record is ours and no write of it is under way."""
        return self in (
            RecoveryState.LOADING,
            RecoveryState.IMPORTING,
            RecoveryState.RESTORING,
            RecoveryState.RECOMMITTING,
            RecoveryState.ABORTING,
        )


(
    _CLAIMING,
    _RESERVING,
    _LOADING,
    _IMPORTING,
    _RESTORING,
    _REWINDING,
    _RECOMMITTING,
    _ABORTING,
    _OVER,
) = RecoveryState


class Recovery(Machine[RecoveryState]):
    """Runs from the claim of the record to the first data of an execution."""

    moves: ClassVar[Moves] = {
        _CLAIMING: frozenset({_RESERVING}),
        _RESERVING: frozenset({_LOADING, _IMPORTING, _ABORTING}),
        _LOADING: frozenset({_RESTORING, _RECOMMITTING, _ABORTING}),
        _IMPORTING: frozenset({_RESTORING}),
        _RESTORING: frozenset({_REWINDING, _RECOMMITTING, _ABORTING}),
        _REWINDING: frozenset({_RECOMMITTING, _ABORTING}),
        _RECOMMITTING: frozenset({_ABORTING}),
        _ABORTING: frozenset({_OVER}),
        _OVER: frozenset(),
    }

    def __init__(self, job: JobState, pending: PendingSnapshot) -> None:
        super().__init__(RecoveryState.CLAIMING)
        self._job, self._pending = job, pending
        self._target: ExecutionRecord
        """The record under which data will flow, with the snapshot that is being restored."""
        self._manifest: Manifest | None = None
        """Manifest of the restored snapshot."""

    @property
    def restores_the_end(self) -> bool:
        """Whether the restored snapshot completed the job. Its execution died after the decision;
        everything is committed by now."""
        return self._manifest is not None and self._manifest.completed

    def on_claimed(self, event: Claimed) -> list[Command]:
        if self.state is not RecoveryState.CLAIMING:
            return []
        job, record = self._job, event.record
        job.decides_every_epoch = event.decides_every_epoch
        job.plan, job.sinks, job.tables = event.plan, event.sinks, event.tables
        # An older execution may have used up its whole block without a decision, and so without a
        # trace in the record. Our ids must be durable before the first attempt.
        self._pending.next_id = record.reserved_snapshot_id + 1
        block = job.config.snapshot_id_block
        job.record = replace(
            record,
            reserved_snapshot_id=record.reserved_snapshot_id + block,
            held_writers=record.most_held_writers(event.held_writers),
        )
        if self._is_cancelled and not self._owes_commit:
            return [job.ending.as_asked()]
        self.become(RecoveryState.RESERVING)
        return [WriteRecord(Purpose.STARTING, job.record)]

    @property
    def _is_cancelled(self) -> bool:
        return self._job.ending.asked is StopKind.CANCEL

    @property
    def _owes_commit(self) -> bool:
        """Whether a dead execution's decision is uncommitted and this start does not go back."""
        record, wanted = self._job.record, self._job.config.initial_snapshot
        ref = record.snapshot
        if ref is None or ref.is_all_committed or record.imports(wanted):
            return False
        return record.rewound(wanted).snapshots == record.snapshots

    @property
    def can_be_left(self) -> bool:
        """Whether a cancel may end it: the record is ours, nothing is being written or owed."""
        is_before = self.state in (_LOADING, _RESTORING, _RECOMMITTING)
        return self.state.can_be_left and not (is_before and self._owes_commit)

    def on_ids_reserved(self, event: RecordAnswer) -> list[Command]:
        if self.state is not RecoveryState.RESERVING:
            return []
        job = self._job
        if event.outcome is not WriteOutcome.WRITTEN:
            return [job.ending.failed("snapshot ids could not be reserved", restartable=True)]
        if self._is_cancelled and not self._owes_commit:
            return [job.ending.as_asked()]
        wanted = job.config.initial_snapshot
        if isinstance(wanted, str) and job.record.imports(wanted):
            self.become(RecoveryState.IMPORTING)
            snapshot_id, timeline = self._pending.take_id(), job.record.timeline + 1
            return [ImportSnapshot(wanted, snapshot_id, timeline)]
        self._target = job.record.rewound(wanted)
        snapshot = self._target.snapshot
        if snapshot is not None and not (self._begins_from_scratch and snapshot.is_all_committed):
            self.become(RecoveryState.LOADING)
            return [LoadManifest(snapshot)]
        return self._begin_from_scratch(None)

    @property
    def _begins_from_scratch(self) -> bool:
        return self._job.config.guarantee is Guarantee.NONE

    def _begin_from_scratch(self, decided: Manifest | None) -> list[Command]:
        """Starts without state; commits what an execution with a guarantee has decided."""
        job = self._job
        job.record = self._target
        job.shards = {v: [ShardState()] * n for v, n in job.config.shards.items()}
        return self._recommit(decided)

    def on_manifest_loaded(self, manifest: Manifest) -> list[Command]:
        if self.state is not RecoveryState.LOADING:
            return []
        if self._begins_from_scratch:
            return self._begin_from_scratch(manifest)
        return self._restore(manifest)

    def on_imported(self, event: SnapshotImported) -> list[Command]:
        if self.state is not RecoveryState.IMPORTING:
            return []
        job, wanted = self._job, self._job.config.initial_snapshot
        assert isinstance(wanted, str)
        # Crash window: the copy exists and no record names it; the next start deletes it.
        self._target = job.record.imported(event.ref, wanted)
        return self._restore(event.manifest)

    def _restore(self, manifest: Manifest) -> list[Command]:
        job = self._job
        job.epoch_id = manifest.epoch_id
        job.sources = dict(manifest.sources)
        job.watermarks = dict(manifest.watermarks)
        job.shown_watermarks = job.watermarks  # what is held back is committed first
        job.counters = dict(manifest.counters)
        self._manifest = manifest
        self.become(RecoveryState.RESTORING)
        return [Restore(manifest)]

    def on_restored(self, event: Restored) -> list[Command]:
        if self.state is not RecoveryState.RESTORING:
            return []
        job, manifest, ref = self._job, self._manifest, self._target.snapshot
        job.shards = {vertex: list(states) for vertex, states in event.shards.items()}
        assert manifest is not None and ref is not None
        job.newest_output = output_after(
            manifest,
            is_committed=ref.committed,
            lost=event.lost_output,
            sinks=job.sinks,
            renamed=job.config.renamed,
        )
        if self._target.snapshots != job.record.snapshots:
            # Not earlier: a damaged or unsuitable snapshot would cost the newer ones for nothing.
            self.become(RecoveryState.REWINDING)
            return [WriteRecord(Purpose.REWOUND, self._target)]
        job.record = self._target
        return self._recommit(manifest)

    def on_rewound(self, event: RecordAnswer) -> list[Command]:
        if self.state is not RecoveryState.REWINDING:
            return []
        job = self._job
        if event.outcome is WriteOutcome.UNKNOWN:
            return [job.ending.undecided(job.record)]
        if event.outcome is not WriteOutcome.WRITTEN:
            return [
                job.ending.failed(
                    "the record that goes back to the chosen snapshot could not be written",
                    restartable=True,
                )
            ]
        job.record = self._target
        return self._end() or self._recommit(self._manifest)

    def _recommit(self, manifest: Manifest | None) -> list[Command]:
        ref = self._job.record.snapshot
        if ref is not None and not ref.is_all_committed and manifest is not None:
            owed = manifest.owed(is_committed=ref.committed)
            if not owed.is_committed:
                self.become(RecoveryState.RECOMMITTING)
                return [Complete(owed, self._job.record, recovering=True)]
        return self._abort_orphans()

    def on_completed(self, event: Completed) -> list[Command]:
        is_due = self.state is RecoveryState.RECOMMITTING
        if not is_due or not self._pending.note_completed(event, includes_held=True):
            return []
        return self._end() or self._abort_orphans()

    def is_finished_before(self, failed: Failed) -> bool:
        """Whether the step that is under way is finished before this failure ends the execution:
        the write of a rewind, which the status would take back, and commits that no other execution
        makes by itself."""
        if self.state is RecoveryState.RECOMMITTING:
            return not failed.completing and self._job.ending.is_last(failed)
        return self.state is RecoveryState.REWINDING

    def _end(self) -> list[Command]:
        """Ends with the stop or failure that came during a step which had to be finished."""
        ending, failed = self._job.ending, self._job.ending.failed_meanwhile
        if self._is_cancelled:
            return [ending.as_asked()]
        return [ending.failed(failed.reason, restartable=failed.restartable)] if failed else []

    def _abort_orphans(self) -> list[Command]:
        # After the commits, before the first data: what the record names must not be rolled back.
        self.become(RecoveryState.ABORTING)
        return [AbortOrphans(self._job.record.execution_id, self._job.record.snapshots)]

    def on_orphans_aborted(self, event: OrphansAborted) -> bool:
        """Handles the answer; whether recovery is over with it."""
        if self.state is not RecoveryState.ABORTING:
            return False
        job = self._job
        self._pending.retention = Retention.of(event.retained)
        self._pending.completed_ms = event.now_ms
        whole = (ref for ref in job.record.snapshots if ref.snapshot_id not in event.damaged)
        job.record = replace(job.record, snapshots=tuple(whole))
        if self._manifest is None:
            # A new job begins at the current positions of its sources.
            job.sources, job.watermarks = dict(event.sources), dict(event.watermarks)
        self.become(RecoveryState.OVER)
        return True
