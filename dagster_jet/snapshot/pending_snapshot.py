"""The pending snapshot: from the acks of its epoch to the note that all of it is committed.

    NONE -> DECIDING -> [COMPLETING] -> NONE
    NONE -> RESERVING -> NONE                  (reserves more ids after many failed attempts)

It proceeds beside the next epoch. At most one snapshot is pending.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import ClassVar

from dagster_jet.core.cadence import LONGEST_MS, pause_ms
from dagster_jet.snapshot.job_state import JobState
from dagster_jet.snapshot.machine import Machine, Moves
from dagster_jet.snapshot.manifest import Ack, Manifest
from dagster_jet.snapshot.newest_output import newest_of
from dagster_jet.snapshot.protocol import (
    CollectGarbage,
    Command,
    Complete,
    Completed,
    Decide,
    Decided,
    Purpose,
    RecordAnswer,
    WriteOutcome,
    WriteRecord,
)
from dagster_jet.snapshot.record import JobStatus, SnapshotRef
from dagster_jet.snapshot.retention import Retention


class PendingState(Enum):
    """State of the newest snapshot once its acks are in."""

    NONE = "no snapshot is pending"
    """The last snapshot is valid and committed, or was discarded."""
    DECIDING = "saving state, then writing the manifest and the record"
    COMPLETING = "committing, then noting that in the record"
    """The snapshot is valid; phase 2 commits what it names."""
    RESERVING = "reserving more snapshot ids"

    @property
    def is_decided(self) -> bool:
        """False while a decision is under way, when the record's content is not known."""
        return self is not PendingState.DECIDING


class SnapshotOutcome(Enum):
    """Result of a snapshot's decision."""

    VALID = "the record names it"
    DISCARDED = "it is certainly not in the record"


_NONE, _DECIDING, _COMPLETING, _RESERVING = PendingState


class PendingSnapshot(Machine[PendingState]):
    """The one pending snapshot of an execution, and the ids of later ones."""

    moves: ClassVar[Moves] = {
        _NONE: frozenset({_DECIDING, _RESERVING}),
        _DECIDING: frozenset({_COMPLETING, _NONE}),
        _COMPLETING: frozenset({_NONE}),
        _RESERVING: frozenset({_NONE}),
    }

    def __init__(self, job: JobState) -> None:
        super().__init__(PendingState.NONE)
        self._job = job
        self.next_id = 0
        self.epochs = 0
        """Epochs that the pending snapshot decides about."""
        self.completed_ms: int | None = None
        """End of the last phase 2 or discard; the pause to the next snapshot starts here."""
        self.failures = 0
        self.last_failure: str | None = None
        self.retention = Retention()
        self._began_ms = 0
        self._took_ms: int | None = None
        """Duration of the last snapshot; None: it was discarded."""
        self._manifest: Manifest | None = None
        self._acks: tuple[Ack, ...] = ()
        self._outcome: SnapshotOutcome | None = None
        self._to_apply: SnapshotOutcome | None = None

    def pause_ms(self, *, has_output: bool) -> int:
        """Returns the time from `completed_ms` to the start of the next snapshot."""
        config = self._job.config
        if not has_output and config.snapshot_interval_ms is None:
            return LONGEST_MS
        return pause_ms(config.snapshot_interval_ms, self._took_ms, config.snapshot_period_ms)

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
        """Reserves more ids if needed; decisions do so too, but repeated failures do not.

        No decision starts meanwhile: two writes of the record must not overtake each other.
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
        # Otherwise the remaining ids suffice, or the next tick asks again.
        self._end(event.now_ms)
        return []

    # --- phase 1, to the decision point ---------------------------------------------------------

    def begin(
        self, acks: tuple[Ack, ...], now_ms: int, *, completed: bool, snapshot_id: int
    ) -> list[Command]:
        """Starts the decision. The barrier is complete, so the snapshot's content is fixed."""
        job = self._job
        job.shards = {v: [state.at_barrier() for state in s] for v, s in job.shards.items()}
        held = () if completed else job.held(now_ms)
        if not held:
            job.shown_watermarks = job.watermarks
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
            shards={v: tuple(state.chain for state in s) for v, s in job.shards.items()},
            artifacts=tuple(job.open_artifacts),
            counters=dict(job.counters),
            plan=dict(job.plan),
            sinks={name: dict(destination) for name, destination in job.sinks.items()},
            completed=completed,
            prepared=tuple(sorted({ack.vertex for ack in acks if ack.prepared})),
            unacknowledged=job.unacknowledged,
            tables=dict(job.tables),
            newest_output=dict(job.newest_output),
            held=held,
            watermarks_before=dict(job.shown_watermarks) if held else {},
        )
        job.open_artifacts = [one for one in job.open_artifacts if one.sink in held]
        job.open_since_ms = {sink: job.open_since_ms[sink] for sink in held}
        self.epochs, job.acked_epochs = job.acked_epochs, 0
        record = replace(
            job.record,
            status=JobStatus.RUNNING if job.ending.asked is None else JobStatus.COMPLETING,
            reserved_snapshot_id=self._wanted_reservation,
            fruitless=0,
            plan_fingerprint=job.config.plan_fingerprint,
        )
        self._began_ms = now_ms
        self.become(PendingState.DECIDING)
        return [Decide(self._manifest, acks, record, job.config.retained_snapshots)]

    def on_decided(self, event: Decided) -> list[Command]:
        """Handles the decision's answer, which is neither FENCED nor UNKNOWN."""
        if not self.is_deciding(event):
            return []
        self._acks, manifest = event.acks, event.manifest
        if event.outcome is not WriteOutcome.WRITTEN:
            return self._discard(manifest, event.reason, event.now_ms)
        job = self._job
        dropped = job.record.snapshots[job.config.retained_snapshots - 1 :]
        job.record = event.record
        self._outcome = self._to_apply = SnapshotOutcome.VALID
        self.apply_outcome()
        job.newest_output |= newest_of(manifest.due, manifest.timeline)
        self.retention.decided(manifest.snapshot_id, manifest.shards)
        self._manifest = None
        self.epochs = 0
        if manifest.is_committed:
            self._took(event.now_ms)
            return self._garbage(dropped)
        self.become(PendingState.COMPLETING)
        # Crash window: the record names the artifacts, nobody has committed them yet (F8).
        return [Complete(manifest, job.record, recovering=False), *self._garbage(dropped)]

    def is_deciding(self, event: Decided) -> bool:
        """Whether the answer is about the snapshot that is being decided."""
        manifest = self._manifest
        return (
            self.state is PendingState.DECIDING
            and manifest is not None
            and manifest.snapshot_id == event.manifest.snapshot_id
        )

    def take_outcome(self) -> SnapshotOutcome | None:
        """Returns the outcome that the last event decided, if any, and clears it."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def apply_outcome(self) -> None:
        """Applies the outcome: the snapshot's runs become saved, or unsaved again.

        Waits while an epoch runs, because its acks report on the runs that it was given.
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

    def _discard(self, manifest: Manifest, reason: str, now_ms: int) -> list[Command]:
        """Discards a snapshot that is certainly not in the record, as if it had no barrier.

        Before the decision point a failure does not fail the job; a later attempt follows.
        """
        job = self._job
        garbage = _left_by(manifest, self._acks)
        self._outcome = self._to_apply = SnapshotOutcome.DISCARDED
        self.apply_outcome()
        job.open_artifacts = [*manifest.due, *job.open_artifacts]
        overdue = {one.sink for one in manifest.due if one.sink in job.config.holds}
        job.open_since_ms |= dict.fromkeys(overdue, 0)
        job.acked_epochs += self.epochs
        self.epochs = 0
        self._manifest = None
        self.failures += 1
        self._took_ms = None
        self.last_failure = reason
        self._end(now_ms)
        return garbage

    def _garbage(self, dropped: tuple[SnapshotRef, ...]) -> list[Command]:
        """Chunk sets that only dropped snapshots needed. A paused old execution can delete them
        safely, since dropped snapshots never return."""
        if not dropped:
            return []
        gone = self.retention.dropped(ref.snapshot_id for ref in dropped)
        return [CollectGarbage(tuple(ref.manifest_name for ref in dropped), gone)]

    # --- phase 2 --------------------------------------------------------------------------------

    def on_completed(self, event: Completed) -> bool:
        """Handles the end of phase 2; whether it completes the pending snapshot."""
        if self.state is not PendingState.COMPLETING or not self.note_completed(event):
            return False
        self._took(event.now_ms)
        return True

    def note_completed(self, event: Completed, *, includes_held: bool = False) -> bool:
        """Notes the end of phase 2 of the record's newest snapshot, also of one that a dead
        execution decided. Returns whether the answer is about that snapshot.

        Args:
            includes_held: see `ExecutionRecord.with_note`.
        """
        record, ref = self._job.record, self._job.record.snapshot
        if event.execution_id != record.execution_id or ref is None:
            return False
        if ref.snapshot_id != event.snapshot_id or (
            ref.is_all_committed if includes_held else ref.committed
        ):
            return False
        self._job.record = record.with_note(
            event.now_ms, includes_held=includes_held, is_confirmed=event.is_confirmed
        )
        return True

    def _took(self, now_ms: int) -> None:
        self._took_ms = max(0, now_ms - self._began_ms)
        self._end(now_ms)

    def _end(self, now_ms: int) -> None:
        self.completed_ms = now_ms
        self.become(PendingState.NONE)


def _left_by(manifest: Manifest, acks: tuple[Ack, ...]) -> list[Command]:
    """Deletes what a failed snapshot left in the store; no record names it."""
    names: dict[str, set[str]] = {}
    for ack in acks:
        if ack.chunk_set is not None:
            names.setdefault(ack.vertex, set()).add(ack.chunk_set.name)
    return [CollectGarbage((manifest.name,), {v: frozenset(n) for v, n in names.items()})]
