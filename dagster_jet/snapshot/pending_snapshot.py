"""The pending snapshot: from the acks of its epoch to the note that all of it is committed.

    NONE -> SAVING -> MANIFEST -> RECORD -> COMMITTING -> NOTING -> NONE
    SAVING, MANIFEST, RECORD -> NONE                   (it failed, and used up an id)
    NONE -> RESERVING -> NONE                          (more ids, where many were used up)
    NONE -> NOTING                                     (phase 2 of a dead execution is over)

It goes on beside the next epoch; there is one at a time.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import ClassVar

from dagster_jet.snapshot.job_state import JobState
from dagster_jet.snapshot.machine import Machine, Moves
from dagster_jet.snapshot.manifest import Ack, Manifest
from dagster_jet.snapshot.newest_output import newest_of
from dagster_jet.snapshot.protocol import (
    AwaitSaved,
    CollectGarbage,
    Command,
    Commit,
    Committed,
    ManifestFailed,
    ManifestWritten,
    Purpose,
    RecordAnswer,
    Saved,
    WriteManifest,
    WriteOutcome,
    WriteRecord,
)
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.snapshot.retention import Retention


class PendingState(Enum):
    """Where the newest snapshot is, once its acks are in."""

    NONE = "none is pending"
    """The last one is valid and committed, or was given up."""
    SAVING = "waiting for state that is still being saved"
    MANIFEST = "writing the manifest"
    RECORD = "writing the record: the decision"
    COMMITTING = "committing"
    """It is valid; phase 2 makes true what it names."""
    NOTING = "noting in the record that all is committed"
    RESERVING = "reserving more snapshot ids"

    @property
    def is_being_committed(self) -> bool:
        """What is decided is made true right now."""
        return self in (PendingState.COMMITTING, PendingState.NOTING)

    @property
    def is_decided(self) -> bool:
        """Nothing can take it back; and what the record says is known."""
        return self not in (PendingState.SAVING, PendingState.MANIFEST, PendingState.RECORD)


class SnapshotOutcome(Enum):
    """What became of a snapshot at its decision."""

    VALID = "the record names it"
    DISCARDED = "it is certainly not in the record"


_NONE, _SAVING, _MANIFEST, _RECORD, _COMMITTING, _NOTING, _RESERVING = PendingState


class PendingSnapshot(Machine[PendingState]):
    """The one snapshot of an execution that is on its way, and the ids for those to come."""

    moves: ClassVar[Moves] = {
        _NONE: frozenset({_SAVING, _RESERVING, _NOTING}),
        _SAVING: frozenset({_MANIFEST, _NONE}),
        _MANIFEST: frozenset({_RECORD, _NONE}),
        _RECORD: frozenset({_COMMITTING, _NONE}),
        _COMMITTING: frozenset({_NOTING}),
        _NOTING: frozenset({_NONE}),
        _RESERVING: frozenset({_NONE}),
    }

    def __init__(self, job: JobState) -> None:
        super().__init__(PendingState.NONE)
        self._job = job
        self.next_id = 0
        self.epochs = 0
        """Epochs that the pending snapshot decides about."""
        self.completed_ms: int | None = None
        """When the last one was committed or given up: the interval counts from here."""
        self.failures = 0
        self.last_failure: str | None = None
        self.retention = Retention()
        self._manifest: Manifest | None = None
        self._ref: SnapshotRef | None = None
        self._acks: tuple[Ack, ...] = ()
        self._outcome: SnapshotOutcome | None = None
        self._to_apply: SnapshotOutcome | None = None

    # --- ids ------------------------------------------------------------------------------------

    @property
    def has_ids(self) -> bool:
        return self.next_id <= self._job.record.reserved_snapshot_id

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    @property
    def _wanted_reservation(self) -> int:
        reserved = self._job.record.reserved_snapshot_id
        # Half a block ahead: attempts between two writes never run out of reserved ids.
        block = self._job.config.snapshot_id_block
        return self.next_id + block if self.next_id + block // 2 > reserved else reserved

    def reserve_ids(self) -> list[Command]:
        """Each decision reserves by itself; snapshots that fail one after the other do not.

        Nothing is decided meanwhile: two writes of the record must not overtake each other.
        """
        record = self._job.record
        if self._wanted_reservation == record.reserved_snapshot_id:
            return []
        self.become(PendingState.RESERVING)
        more = replace(record, reserved_snapshot_id=self._wanted_reservation)
        return [WriteRecord(Purpose.RESERVED, more)]

    def on_more_ids_reserved(self, event: RecordAnswer) -> list[Command]:
        if self.state is not PendingState.RESERVING:
            return []
        if event.outcome is WriteOutcome.WRITTEN:
            reserved = self._wanted_reservation
            self._job.record = replace(self._job.record, reserved_snapshot_id=reserved)
        # Else the ids that are left will do, or the next tick asks again.
        self._end(event.now_ms)
        return []

    # --- phase 1, to the decision point ---------------------------------------------------------

    def begin(
        self, acks: tuple[Ack, ...], now_ms: int, *, completed: bool, snapshot_id: int
    ) -> list[Command]:
        """The barrier is whole: what the snapshot is of does not change any more."""
        job = self._job
        job.shards = {v: [state.at_barrier() for state in s] for v, s in job.shards.items()}
        self._manifest = Manifest(
            job=job.config.job,
            snapshot_id=snapshot_id,
            epoch_id=job.epoch_id,
            execution_id=job.record.execution_id,
            timeline=job.record.timeline,
            plan_fingerprint=job.config.plan_fingerprint,
            partition_count=job.config.partition_count,
            sources=job.sources,
            watermarks=job.watermarks,
            shards={},
            artifacts=tuple(job.open_artifacts),
            counters=dict(job.counters),
            plan=dict(job.plan),
            sinks={name: dict(destination) for name, destination in job.sinks.items()},
            completed=completed,
            prepared=tuple(sorted({ack.vertex for ack in acks if ack.prepared})),
            unacknowledged=job.unacknowledged,
            newest_output=dict(job.newest_output),
        )
        job.open_artifacts = []
        self.epochs, job.acked_epochs = job.acked_epochs, 0
        self.become(PendingState.SAVING)
        if any(ack.saving for ack in acks):
            return [AwaitSaved(snapshot_id, acks)]
        return self.on_saved(Saved(snapshot_id, acks, now_ms))

    def on_saved(self, event: Saved) -> list[Command]:
        manifest = self._manifest_at(PendingState.SAVING, event.snapshot_id)
        if manifest is None:
            return []
        self._acks = event.acks
        errors = [ack.snapshot_error for ack in event.acks if ack.snapshot_error]
        if errors:
            return self._discard(errors[0], event.now_ms)
        shards = {
            vertex: tuple(state.chain for state in states)
            for vertex, states in self._job.shards_after(event.acks).items()
        }
        self._manifest = replace(manifest, shards=shards)
        self.become(PendingState.MANIFEST)
        return [WriteManifest(self._manifest)]

    def _manifest_at(self, state: PendingState, snapshot_id: int) -> Manifest | None:
        """The manifest in the making, if an answer about this snapshot is due at this step."""
        manifest = self._manifest
        if self.state is not state or manifest is None:
            return None
        return manifest if manifest.snapshot_id == snapshot_id else None

    def on_manifest_written(self, event: ManifestWritten) -> list[Command]:
        manifest = self._manifest_at(PendingState.MANIFEST, event.snapshot_id)
        if manifest is None:
            return []
        self._ref = SnapshotRef(
            snapshot_id=manifest.snapshot_id,
            epoch_id=manifest.epoch_id,
            execution_id=manifest.execution_id,
            manifest_name=manifest.name,
            manifest_checksum=event.checksum,
            taken_at_ms=event.now_ms,
            state_bytes=manifest.state_bytes,
            committed=manifest.is_committed,
        )
        self.become(PendingState.RECORD)
        # Decision point: once this write is on a majority of members the snapshot is valid.
        return [WriteRecord(Purpose.SNAPSHOT, self._record_with(self._ref, event.now_ms))]

    def _record_with(self, ref: SnapshotRef, now_ms: int) -> ExecutionRecord:
        """The record as the decision makes it."""
        job = self._job
        return replace(
            job.record,
            status=JobStatus.RUNNING if job.ending.asked is None else JobStatus.COMPLETING,
            snapshots=(ref, *job.record.snapshots)[: job.config.retained_snapshots],
            reserved_snapshot_id=self._wanted_reservation,
            fruitless=0,
            plan_fingerprint=job.config.plan_fingerprint,
            updated_at_ms=now_ms,
        )

    def on_manifest_failed(self, event: ManifestFailed) -> list[Command]:
        if self._manifest_at(PendingState.MANIFEST, event.snapshot_id) is None:
            return []
        return self._discard(event.reason, event.now_ms)

    def on_decided(self, event: RecordAnswer) -> list[Command]:
        """The answer of the decision's write, which is not UNKNOWN."""
        ref, manifest = self._ref, self._manifest
        if self.state is not PendingState.RECORD or ref is None or manifest is None:
            return []
        if event.outcome is not WriteOutcome.WRITTEN:
            return self._discard("too few store members answered", event.now_ms)
        job = self._job
        dropped = job.record.snapshots[job.config.retained_snapshots - 1 :]
        job.record = self._record_with(ref, event.now_ms)
        self._outcome = self._to_apply = SnapshotOutcome.VALID
        self.apply_outcome()
        job.newest_output |= newest_of(manifest.artifacts, manifest.timeline)
        self.retention.decided(ref.snapshot_id, manifest.shards)
        self._manifest = self._ref = None
        self.epochs = 0
        if ref.committed:
            self._end(event.now_ms)
            return self._garbage(dropped)
        self.become(PendingState.COMMITTING)
        # Crash window: the record names the artifacts, nobody has committed them yet (F8).
        return [commit_of(manifest, recovering=False), *self._garbage(dropped)]

    def take_outcome(self) -> SnapshotOutcome | None:
        """What the last event has decided, if it has; once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def apply_outcome(self) -> None:
        """What was saved for the snapshot is saved, or unsaved again, now that it is known.

        Not under a running epoch: its acks say what became of the runs that it was given.
        """
        job = self._job
        if self._to_apply is None or job.running is not None:
            return
        if self._to_apply is SnapshotOutcome.VALID:
            job.shards = job.shards_after(self._acks)
        else:
            job.shards = {
                v: [s.after_failure() for s in states] for v, states in job.shards.items()
            }
        self._to_apply = None
        self._acks = ()

    def _discard(self, reason: str, now_ms: int) -> list[Command]:
        """The snapshot is certainly not in the record: as if its barrier had not been.

        Before the decision point a failure is no job failure: discard, try again later.
        """
        job, manifest = self._job, self._manifest
        assert manifest is not None
        garbage = self._left_by(manifest, self._acks)
        self._outcome = self._to_apply = SnapshotOutcome.DISCARDED
        self.apply_outcome()
        job.open_artifacts = [*manifest.artifacts, *job.open_artifacts]
        job.acked_epochs += self.epochs
        self.epochs = 0
        self._manifest = self._ref = None
        self.failures += 1
        self.last_failure = reason
        self._end(now_ms)
        return garbage

    def _left_by(self, manifest: Manifest, acks: tuple[Ack, ...]) -> list[Command]:
        """What a failed snapshot left in the store; certainly named by no record."""
        names: dict[str, set[str]] = {}
        for ack in acks:
            if ack.chunk_set is not None:
                names.setdefault(ack.vertex, set()).add(ack.chunk_set.name)
        manifests = () if self.state is PendingState.SAVING else (manifest.name,)
        if not names and not manifests:
            return []
        return [CollectGarbage(manifests, {v: frozenset(n) for v, n in names.items()})]

    def _garbage(self, dropped: tuple[SnapshotRef, ...]) -> list[Command]:
        """What only dropped snapshots needed. Safe for a sleeper: history never grows back."""
        if not dropped:
            return []
        gone = self.retention.dropped(ref.snapshot_id for ref in dropped)
        return [CollectGarbage(tuple(ref.manifest_name for ref in dropped), gone)]

    # --- phase 2 --------------------------------------------------------------------------------

    def on_committed(self, event: Committed) -> list[Command]:
        return self.note_committed(event) if self.state is PendingState.COMMITTING else []

    def note_committed(self, event: Committed) -> list[Command]:
        """Phase 2 of the record's newest snapshot is over, also where a dead execution's was."""
        record = self._job.record
        ref = record.snapshot
        if event.execution_id != record.execution_id or ref is None:
            return []
        if ref.snapshot_id != event.snapshot_id or ref.committed:
            return []
        self._job.record = replace(
            record,
            snapshots=(replace(ref, committed=True), *record.snapshots[1:]),
            updated_at_ms=event.now_ms,
        )
        self.become(PendingState.NOTING)
        return [WriteRecord(Purpose.COMMITTED, self._job.record)]

    def on_noted(self, event: RecordAnswer) -> bool:
        """Whether a snapshot is complete with this answer.

        If the note did not arrive, a restart commits once more, which changes nothing.
        """
        if self.state is not PendingState.NOTING:
            return False
        self._end(event.now_ms)
        return True

    def _end(self, now_ms: int) -> None:
        self.completed_ms = now_ms
        self.become(PendingState.NONE)


def commit_of(manifest: Manifest, *, recovering: bool) -> Commit:
    """Phase 2 of what this manifest names."""
    return Commit(
        manifest.snapshot_id,
        manifest.artifacts,
        recovering,
        manifest.prepared,
        manifest.sinks,
        manifest.unacknowledged,
    )
