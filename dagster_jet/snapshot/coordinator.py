"""The two-phase snapshot protocol as a state machine: events in, commands out.

No I/O, no clock, no threads, no randomness: the caller executes the commands and reports what
became of them, with the time where it matters. The engine's loop is one caller; the simulator in
``tests/simulation`` is the other and crashes between any two steps.

    CLAIMING -> RESERVING -> LOADING -> RESTORING -> [REWINDING] -> RECOMMITTING -> ABORTING
    ABORTING -> [DECIDING, the first snapshot] -> READY
    READY -> IN_EPOCH -> READY                        (an epoch, with a snapshot or without)
    READY -> IN_EPOCH -> DECIDING -> READY            (the last epoch: nothing may run meanwhile)
    any -> STOPPED

What follows the acks of a snapshot has a state of its own, because it goes on beside the next
epoch:

    NONE -> SAVING -> MANIFEST -> RECORD -> COMMITTING -> NOTING -> NONE
    SAVING, MANIFEST, RECORD -> [RESERVING] -> NONE       (it failed, and used up an id)

The one sentence it implements: nothing that a task writes counts until the record names it, and
everything that the record names is made true again after any crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from dagster_jet.snapshot.manifest import (
    Ack,
    Artifact,
    Counters,
    Manifest,
    ShardState,
    checksum,
)
from dagster_jet.snapshot.owed import Destination
from dagster_jet.snapshot.protocol import (
    AbortLeftovers,
    AwaitSaved,
    CancelRequested,
    Claim,
    Claimed,
    CollectGarbage,
    Command,
    Commit,
    Committed,
    EpochAcked,
    EpochFailed,
    Event,
    Failed,
    Guarantee,
    LeftoversAborted,
    LoadManifest,
    ManifestFailed,
    ManifestLoaded,
    ManifestWritten,
    Opportunity,
    Publish,
    Published,
    Purpose,
    RecordAnswer,
    Restore,
    Restored,
    RunEpoch,
    Saved,
    Stop,
    StopKind,
    WriteManifest,
    WriteOutcome,
    WriteRecord,
)
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause

SNAPSHOT_ID_BLOCK = 64
"""Ids are reserved in the record in blocks, so that an attempt needs no write of its own."""


class Phase(Enum):
    """Where the execution is. Only `READY` accepts an `Opportunity`."""

    CLAIMING = "claiming"
    RESERVING = "reserving snapshot ids"
    LOADING = "loading"
    RESTORING = "restoring"
    REWINDING = "rewinding"
    RECOMMITTING = "recommitting"
    ABORTING = "aborting"
    READY = "ready"
    IN_EPOCH = "in epoch"
    DECIDING = "waiting for the decision about a snapshot"
    STOPPED = "stopped"

    @property
    def is_recovery(self) -> bool:
        """The record is ours, nothing of it is being written, and no data flows yet."""
        return self in (Phase.LOADING, Phase.RESTORING, Phase.RECOMMITTING, Phase.ABORTING)


class Settling(Enum):
    """Where the newest snapshot is, once its acks are in."""

    NONE = "settled"
    SAVING = "waiting for state that is still being saved"
    MANIFEST = "writing the manifest"
    RECORD = "writing the record: the decision"
    COMMITTING = "committing"
    NOTING = "noting in the record that all is committed"
    RESERVING = "reserving more snapshot ids"

    @property
    def is_decided(self) -> bool:
        """Nothing can take it back; and what the record says is known."""
        return self not in (Settling.SAVING, Settling.MANIFEST, Settling.RECORD)


@dataclass(frozen=True)
class CoordinatorConfig:
    """What the protocol needs to know about a job."""

    job: str
    guarantee: Guarantee
    snapshot_interval_ms: int
    retained_snapshots: int
    shards: Mapping[str, int]
    """Stateful vertices and how many shards each has: all of them must ack every epoch."""
    partition_count: int
    plan_fingerprint: str
    suspend_on_failure: bool = False
    initial_snapshot: int | None = None
    """Go back to this one, once (`ExecutionRecord.rewound`)."""
    snapshot_id_block: int = SNAPSHOT_ID_BLOCK


@dataclass
class Coordinator:
    """One execution of one job, from claim to stop. Not thread-safe: feed it from one thread."""

    config: CoordinatorConfig
    phase: Phase = Phase.CLAIMING
    settling: Settling = Settling.NONE
    record: ExecutionRecord = field(init=False)
    _rewound: ExecutionRecord = field(init=False)
    """The record with which data will flow: of the snapshot that is being restored."""
    shards: dict[str, list[ShardState]] = field(default_factory=dict)
    counters: dict[str, Counters] = field(default_factory=dict)
    failed_snapshots: int = 0
    last_snapshot_failure: str | None = None

    def __post_init__(self) -> None:
        self._epoch_id = 0
        self._sources: dict[str, Any] = {}
        self._watermarks: dict[str, Any] = {}
        self._running: RunEpoch | None = None
        self._publishing: RunEpoch | None = None
        self._open_artifacts: list[Artifact] = []
        self._epochs_since_barrier = 0
        self._epochs_deciding = 0
        self._settled_ms: int | None = None
        self._next_snapshot_id = 0
        self._candidate: Manifest | None = None
        self._candidate_ref: SnapshotRef | None = None
        self._snapshot_acks: tuple[Ack, ...] = ()
        self._published_acks: tuple[Ack, ...] = ()
        self._outcome: bool | None = None
        self._failed_meanwhile: Failed | None = None
        self._retained: dict[int, Mapping[str, frozenset[str]]] = {}
        self._stop_kind: StopKind | None = None
        self._completed = False
        self._acked_at_ms = 0
        self._decides_every_epoch = False
        self._plan: Mapping[str, Any] = {}
        self._sinks: Mapping[str, Destination] = {}

    # --- the two entry points -------------------------------------------------------------------

    def begin(self) -> list[Command]:
        return [Claim()]

    def handle(self, event: Event) -> list[Command]:
        """Applies one event. Answers of a dead execution or of a past step change nothing."""
        if self.phase is Phase.STOPPED:
            return []
        match event:
            case Claimed():
                return self._on_claimed(event)
            case ManifestLoaded(manifest):
                return self._on_manifest_loaded(manifest)
            case Restored(shards):
                return self._on_restored(shards)
            case Committed():
                return self._on_committed(event)
            case LeftoversAborted():
                return self._on_leftovers_aborted(event)
            case Opportunity():
                return self._on_opportunity(event)
            case CancelRequested():
                return self._on_cancel_requested()
            case EpochAcked():
                return self._on_epoch_acked(event)
            case EpochFailed():
                return self._on_epoch_failed(event)
            case Published():
                return self._on_published(event)
            case Saved():
                return self._on_saved(event)
            case ManifestWritten():
                return self._on_manifest_written(event)
            case ManifestFailed():
                return self._on_manifest_failed(event)
            case RecordAnswer():
                return self._on_record_answer(event)
            case Failed(reason, restartable):
                return self._stop_failed(reason, restartable)

    @property
    def epochs_since_barrier(self) -> int:
        """Epochs that no snapshot has, not even one that is being decided; none under guarantee
        "none"."""
        return 0 if self.config.guarantee is Guarantee.NONE else self._epochs_since_barrier

    @property
    def undecided_epochs(self) -> int:
        """Epochs whose output no snapshot has decided about; none under guarantee "none"."""
        return self.epochs_since_barrier + self._epochs_deciding

    # --- start and restart, in the order of protocol.md section 4 -------------------------------

    def _on_claimed(self, event: Claimed) -> list[Command]:
        if self.phase is not Phase.CLAIMING:
            return []
        record, self._decides_every_epoch = event.record, event.decides_every_epoch
        self._plan, self._sinks = event.plan, event.sinks
        # An older execution may have used up to its whole block without a decision, that is without
        # a trace in the record. Ours must be durable before the first attempt.
        self._next_snapshot_id = record.reserved_snapshot_id + 1
        self.record = replace(
            record,
            reserved_snapshot_id=record.reserved_snapshot_id + self.config.snapshot_id_block,
        )
        if self._stop_kind is StopKind.CANCEL:
            return self._stop_asked_for()
        self.phase = Phase.RESERVING
        return [WriteRecord(Purpose.STARTING, self.record)]

    def _on_ids_reserved(self, event: RecordAnswer) -> list[Command]:
        if self.phase is not Phase.RESERVING:
            return []
        if event.outcome is not WriteOutcome.WRITTEN:
            return self._stop_failed("snapshot ids could not be reserved", restartable=True)
        if self._stop_kind is StopKind.CANCEL:
            return self._stop_asked_for()
        self._rewound = self.record.rewound(self.config.initial_snapshot)
        snapshot = self._rewound.snapshot
        if snapshot is not None and self.config.guarantee is not Guarantee.NONE:
            self.phase = Phase.LOADING
            return [LoadManifest(snapshot)]
        self.record = self._rewound
        self.shards = {v: [ShardState()] * n for v, n in self.config.shards.items()}
        return self._abort_leftovers()

    def _on_manifest_loaded(self, manifest: Manifest) -> list[Command]:
        if self.phase is not Phase.LOADING:
            return []
        self._epoch_id = manifest.epoch_id
        self._sources = dict(manifest.sources)
        self._watermarks = dict(manifest.watermarks)
        self.counters = dict(manifest.counters)
        self._completed = manifest.completed
        self._candidate = manifest
        self.phase = Phase.RESTORING
        return [Restore(manifest)]

    def _on_restored(self, shards: Mapping[str, tuple[ShardState, ...]]) -> list[Command]:
        if self.phase is not Phase.RESTORING or self._candidate is None:
            return []
        self.shards = {vertex: list(states) for vertex, states in shards.items()}
        if self._rewound.snapshots != self.record.snapshots:
            # Not before: had it been damaged, or did it not fit the pipeline, then what is newer
            # would be gone for nothing.
            self.phase = Phase.REWINDING
            return [WriteRecord(Purpose.REWOUND, self._rewound)]
        self.record = self._rewound
        return self._recommit(self._candidate)

    def _on_rewound(self, event: RecordAnswer) -> list[Command]:
        if self.phase is not Phase.REWINDING or self._candidate is None:
            return []
        if event.outcome is WriteOutcome.UNKNOWN:
            return self._stop_undecided()
        if event.outcome is not WriteOutcome.WRITTEN:
            return self._stop_failed("the rewind could not be written", restartable=True)
        self.record = self._rewound
        if self._stop_kind is StopKind.CANCEL:
            return self._stop_asked_for()
        return self._recommit(self._candidate)

    def _recommit(self, manifest: Manifest) -> list[Command]:
        self._candidate = None
        ref = self.record.snapshot
        if ref is not None and not ref.committed and not manifest.is_committed:
            self.phase = Phase.RECOMMITTING
            return [_commit(manifest, recovering=True)]
        return self._abort_leftovers()

    def _abort_leftovers(self) -> list[Command]:
        # After the commits, before the first data: what the record names must not be rolled back.
        self.phase = Phase.ABORTING
        return [AbortLeftovers(self.record.execution_id, self.record.snapshots)]

    def _on_leftovers_aborted(self, event: LeftoversAborted) -> list[Command]:
        if self.phase is not Phase.ABORTING:
            return []
        self._retained = dict(event.retained)
        whole = (ref for ref in self.record.snapshots if ref.snapshot_id not in event.damaged)
        self.record = replace(self.record, snapshots=tuple(whole))
        self._settled_ms = event.now_ms
        if self._completed:
            # The last execution died after its last decision: everything is committed by now.
            self._stop_kind = StopKind.COMPLETE
            return self._stop_asked_for()
        if self.record.snapshots or self.config.guarantee is Guarantee.NONE:
            return self._become_ready()
        # A new job: pin its starting positions, so that a crash before the first regular snapshot
        # cannot move them.
        self._sources = dict(event.sources)
        self._watermarks = dict(event.watermarks)
        self.phase = Phase.DECIDING
        return self._settle_snapshot((), event.now_ms, completed=False)

    def _become_ready(self) -> list[Command]:
        self.phase = Phase.READY
        if self.record.status is JobStatus.STARTING:
            self.record = replace(self.record, status=JobStatus.RUNNING)
            return [WriteRecord(Purpose.RUNNING, self.record)]
        return []

    # --- one epoch ------------------------------------------------------------------------------

    def _on_opportunity(self, event: Opportunity) -> list[Command]:
        if self.phase is not Phase.READY:
            return []
        stop = StopKind.CANCEL if self._stop_kind is StopKind.CANCEL else event.stop
        if stop is StopKind.CANCEL and self.settling.is_decided:
            self._stop_kind = stop
            return self._stop_asked_for()
        if self.settling is not Settling.NONE and (
            # Two transactions per writer: a third must not open before phase 2 has ended.
            stop or self._decides_every_epoch or self._epochs_since_barrier >= 1
        ):
            return []
        if stop is not None:
            self._stop_kind = stop
            if stop is not StopKind.COMPLETE and self.epochs_since_barrier == 0:
                return self._stop_asked_for()
            if not self._has_ids:
                return self._stop_without_snapshot("there are no snapshot ids")
            return self._run_epoch(
                snapshot=self.config.guarantee is not Guarantee.NONE,
                terminal=True,
                final=stop is StopKind.COMPLETE,
            )
        due = self._snapshot_is_due(event.now_ms)
        if due and not self._has_ids:
            return self._reserve_ids()
        if event.wants_epoch or (due and self._epochs_since_barrier > 0):
            return self._run_epoch(snapshot=due, terminal=False, final=False)
        return []

    def _snapshot_is_due(self, now_ms: int) -> bool:
        if self.config.guarantee is Guarantee.NONE or self.settling is not Settling.NONE:
            return False
        since = now_ms - (self._settled_ms or 0)
        return self._decides_every_epoch or since >= self.config.snapshot_interval_ms

    def snapshot_due_at_ms(self) -> int | None:
        """When an idle job should look again, or None if nothing is waiting for a snapshot."""
        if self.epochs_since_barrier == 0:
            return None
        return (self._settled_ms or 0) + self.config.snapshot_interval_ms

    def _run_epoch(self, *, snapshot: bool, terminal: bool, final: bool) -> list[Command]:
        snapshot_id = None
        if snapshot:
            snapshot_id = self._next_snapshot_id
            self._next_snapshot_id += 1
        self._epoch_id += 1
        self._running = RunEpoch(
            self.record.execution_id, self._epoch_id, snapshot_id, terminal, final
        )
        self.phase = Phase.IN_EPOCH
        return [self._running]

    def _on_epoch_failed(self, event: EpochFailed) -> list[Command]:
        if not self._is_running(event.execution_id, event.epoch_id):
            return []
        return self._stop_failed(event.reason, event.restartable)

    def _is_running(self, execution_id: int, epoch_id: int) -> bool:
        running = self._running
        return (
            self.phase is Phase.IN_EPOCH
            and running is not None
            and (running.execution_id, running.epoch_id) == (execution_id, epoch_id)
        )

    def _on_epoch_acked(self, event: EpochAcked) -> list[Command]:
        if not self._is_running(event.execution_id, event.epoch_id):
            return []
        # From here on the same answer once more changes nothing, also while it is being published.
        running, self._running = self._running, None
        assert running is not None
        self._acked_at_ms = event.now_ms
        acks = _distinct(event.acks)
        problem = self._incomplete(acks)
        if problem is not None:
            return self._stop_failed(f"epoch {event.epoch_id}: {problem}", restartable=True)
        self._sources = dict(event.sources)
        self._watermarks = dict(event.watermarks)
        for ack in acks:
            self.counters[ack.vertex] = self.counters.get(ack.vertex, Counters()).plus(ack)
            if ack.vertex in self.shards:
                shard = self.shards[ack.vertex][ack.shard]
                self.shards[ack.vertex][ack.shard] = shard.after_epoch(ack)
        self._apply_outcome()
        self._epochs_since_barrier += 1
        artifacts = tuple(artifact for ack in acks for artifact in ack.artifacts)
        if self.config.guarantee is not Guarantee.EXACTLY_ONCE and artifacts:
            self._published_acks, self._publishing = acks, running
            return [Publish(running.epoch_id, artifacts)]
        self._open_artifacts.extend(artifacts)
        return self._epoch_done(running, acks, event.now_ms)

    def _on_published(self, event: Published) -> list[Command]:
        running = self._publishing
        if running is None or running.epoch_id != event.epoch_id:
            return []
        self._publishing = None
        return self._epoch_done(running, self._published_acks, self._acked_at_ms)

    def _epoch_done(self, running: RunEpoch, acks: tuple[Ack, ...], now_ms: int) -> list[Command]:
        self.phase = Phase.READY
        if running.snapshot_id is not None:
            if running.terminal:
                self.phase = Phase.DECIDING
            return self._settle_snapshot(acks, now_ms, running.final, running.snapshot_id)
        return self._stop_asked_for() if running.terminal else []

    def _incomplete(self, acks: Iterable[Ack]) -> str | None:
        """Barrier broadcast: every shard of every stateful vertex, each exactly once."""
        seen: dict[tuple[str, int], str] = {}
        for ack in acks:
            key = (ack.vertex, ack.shard)
            if key in seen:
                return f"stage {ack.vertex!r}, shard {ack.shard} acked twice"
            seen[key] = ack.attempt
        for vertex, count in self.config.shards.items():
            missing = [shard for shard in range(count) if (vertex, shard) not in seen]
            if missing:
                return f"stage {vertex!r}: no ack from shards {missing}"
        return None

    def _on_cancel_requested(self) -> list[Command]:
        """From here on the execution was cancelled, whatever it is that ends it."""
        if self._stop_kind is StopKind.COMPLETE:
            return []  # its last epoch has been run
        self._stop_kind = StopKind.CANCEL
        # Elsewhere an answer is due, or the next `Opportunity` ends it.
        return self._stop_asked_for() if self.phase.is_recovery else []

    # --- phase 1, to the decision point ---------------------------------------------------------

    def _settle_snapshot(
        self, acks: tuple[Ack, ...], now_ms: int, completed: bool, snapshot_id: int | None = None
    ) -> list[Command]:
        """The barrier is whole: what the snapshot is of does not change any more."""
        if snapshot_id is None:
            snapshot_id = self._next_snapshot_id
            self._next_snapshot_id += 1
        self.shards = {v: [state.at_barrier() for state in s] for v, s in self.shards.items()}
        self._candidate = Manifest(
            job=self.config.job,
            snapshot_id=snapshot_id,
            epoch_id=self._epoch_id,
            execution_id=self.record.execution_id,
            line=self.record.line,
            plan_fingerprint=self.config.plan_fingerprint,
            partition_count=self.config.partition_count,
            sources=self._sources,
            watermarks=self._watermarks,
            shards={},
            artifacts=tuple(self._open_artifacts),
            counters=dict(self.counters),
            plan=dict(self._plan),
            sinks={name: dict(destination) for name, destination in self._sinks.items()},
            completed=completed,
            prepared=tuple(sorted({ack.vertex for ack in acks if ack.prepared})),
        )
        self._open_artifacts = []
        self._epochs_deciding, self._epochs_since_barrier = self._epochs_since_barrier, 0
        self.settling = Settling.SAVING
        if any(ack.saving for ack in acks):
            return [AwaitSaved(snapshot_id, acks)]
        return self._on_saved(Saved(snapshot_id, acks, now_ms))

    def _on_saved(self, event: Saved) -> list[Command]:
        manifest = self._candidate_in(Settling.SAVING, event.snapshot_id)
        if manifest is None:
            return []
        self._snapshot_acks = event.acks
        errors = [ack.snapshot_error for ack in event.acks if ack.snapshot_error]
        if errors:
            return self._not_decided(errors[0], event.now_ms)
        shards = {
            vertex: tuple(state.chain for state in states)
            for vertex, states in self._shards_after(event.acks).items()
        }
        self._candidate = replace(manifest, shards=shards)
        self.settling = Settling.MANIFEST
        return [WriteManifest(self._candidate)]

    def _candidate_in(self, settling: Settling, snapshot_id: int) -> Manifest | None:
        """The manifest in the making, if an answer about this snapshot is due at this step."""
        candidate = self._candidate
        if self.settling is not settling or candidate is None:
            return None
        return candidate if candidate.snapshot_id == snapshot_id else None

    def _shards_after(self, acks: tuple[Ack, ...]) -> dict[str, list[ShardState]]:
        shards = {vertex: list(states) for vertex, states in self.shards.items()}
        for ack in acks:
            if ack.vertex in shards:
                state = shards[ack.vertex][ack.shard]
                shards[ack.vertex][ack.shard] = state.after_snapshot(ack)
        return shards

    def _apply_outcome(self) -> None:
        """What was saved for the snapshot is saved, or unsaved again, now that it is known.

        Not under a running epoch: its acks say what became of the runs that it was given.
        """
        if self._outcome is None or self._running is not None:
            return
        if self._outcome:
            self.shards = self._shards_after(self._snapshot_acks)
        else:
            self.shards = {
                v: [s.after_failure() for s in states] for v, states in self.shards.items()
            }
        self._outcome = None
        self._snapshot_acks = ()

    def _on_manifest_written(self, event: ManifestWritten) -> list[Command]:
        manifest = self._candidate_in(Settling.MANIFEST, event.snapshot_id)
        if manifest is None:
            return []
        data = manifest.to_bytes()
        ref = SnapshotRef(
            snapshot_id=manifest.snapshot_id,
            epoch_id=manifest.epoch_id,
            execution_id=manifest.execution_id,
            manifest_name=manifest.name,
            manifest_checksum=checksum(data),
            taken_at_ms=event.now_ms,
            state_bytes=manifest.state_bytes,
            committed=manifest.is_committed,
        )
        self._candidate_ref = ref
        self.settling = Settling.RECORD
        # Decision point: once this write is on a majority of members the snapshot is valid.
        return [WriteRecord(Purpose.SNAPSHOT, self._record_with(ref, event.now_ms))]

    def _record_with(self, ref: SnapshotRef, now_ms: int) -> ExecutionRecord:
        """The record as the decision makes it."""
        return replace(
            self.record,
            status=JobStatus.RUNNING if self._stop_kind is None else JobStatus.COMPLETING,
            snapshots=(ref, *self.record.snapshots)[: self.config.retained_snapshots],
            reserved_snapshot_id=self._reserved(),
            plan_fingerprint=self.config.plan_fingerprint,
            updated_at_ms=now_ms,
        )

    def _reserved(self) -> int:
        reserved = self.record.reserved_snapshot_id
        # Half a block ahead: attempts between two writes never run out of reserved ids.
        block = self.config.snapshot_id_block
        if self._next_snapshot_id + block // 2 > reserved:
            return self._next_snapshot_id + block
        return reserved

    @property
    def _has_ids(self) -> bool:
        return self._next_snapshot_id <= self.record.reserved_snapshot_id

    def _reserve_ids(self) -> list[Command]:
        """Each decision reserves by itself; snapshots that fail one after the other do not.

        Nothing is decided meanwhile: two writes of the record must not overtake each other.
        """
        if self._reserved() == self.record.reserved_snapshot_id:
            return []
        self.settling = Settling.RESERVING
        more = replace(self.record, reserved_snapshot_id=self._reserved())
        return [WriteRecord(Purpose.RESERVED, more)]

    def _on_more_ids_reserved(self, event: RecordAnswer) -> list[Command]:
        if self.settling is not Settling.RESERVING:
            return []
        if event.outcome is WriteOutcome.WRITTEN:
            self.record = replace(self.record, reserved_snapshot_id=self._reserved())
        # Else the ids that are left will do, or the next opportunity asks again.
        self.settling, self._settled_ms = Settling.NONE, event.now_ms
        return []

    def _on_manifest_failed(self, event: ManifestFailed) -> list[Command]:
        if self._candidate_in(Settling.MANIFEST, event.snapshot_id) is None:
            return []
        return self._not_decided(event.reason, event.now_ms)

    def _not_decided(self, reason: str, now_ms: int) -> list[Command]:
        """The snapshot is certainly not in the record: as if its barrier had not been.

        Before the decision point a failure is no job failure: discard, try again later.
        """
        assert self._candidate is not None
        discard = self._discard(self._candidate, self._snapshot_acks)
        self._outcome = False
        self._apply_outcome()
        self._open_artifacts = [*self._candidate.artifacts, *self._open_artifacts]
        self._epochs_since_barrier += self._epochs_deciding
        self._epochs_deciding = 0
        self._candidate = self._candidate_ref = None
        self.settling, self._settled_ms = Settling.NONE, now_ms
        if self.phase is Phase.DECIDING:
            self.phase = Phase.READY
        self.failed_snapshots += 1
        self.last_snapshot_failure = reason
        return [*self._after_failed_snapshot(discard, reason), *self._stop_for_failed_meanwhile()]

    def _after_failed_snapshot(self, discard: list[Command], reason: str) -> list[Command]:
        if self.record.snapshot is None and self._epoch_id == 0:
            return self._stop_failed(f"the first snapshot failed: {reason}", restartable=True)
        if self._stop_kind is not None:
            # A terminal snapshot that fails does not keep the job alive: resume from the last one.
            return [*discard, *self._stop_without_snapshot(reason)]
        if self._decides_every_epoch:
            # What was prepared is in our shards' state, which the next epoch would commit.
            return [*discard, *self._stop_failed(f"a snapshot failed: {reason}", restartable=True)]
        return [*discard, *self._reserve_ids()]

    def _stop_without_snapshot(self, reason: str) -> list[Command]:
        if self._stop_kind is StopKind.COMPLETE:
            return self._stop_failed(f"the last snapshot failed: {reason}", restartable=True)
        return self._stop_asked_for()

    def _discard(self, manifest: Manifest, acks: tuple[Ack, ...]) -> list[Command]:
        """What the failed snapshot left in the store; certainly named by no record."""
        names: dict[str, set[str]] = {}
        for ack in acks:
            if ack.chunk_set is not None:
                names.setdefault(ack.vertex, set()).add(ack.chunk_set.name)
        manifests = () if self.settling is Settling.SAVING else (manifest.name,)
        if not names and not manifests:
            return []
        return [CollectGarbage(manifests, {v: frozenset(n) for v, n in names.items()})]

    def _on_record_answer(self, event: RecordAnswer) -> list[Command]:
        if event.outcome is WriteOutcome.FENCED:
            self.phase = Phase.STOPPED
            reason = "a newer execution owns the job"
            return [Stop(self.record.status, StopCause.FENCED, reason)]
        match event.purpose:
            case Purpose.STARTING:
                return self._on_ids_reserved(event)
            case Purpose.SNAPSHOT:
                return self._on_snapshot_decided(event)
            case Purpose.COMMITTED:
                return self._on_commit_noted(event)
            case Purpose.REWOUND:
                return self._on_rewound(event)
            case Purpose.RESERVED:
                return self._on_more_ids_reserved(event)
            case Purpose.RUNNING | Purpose.LEASE:
                return []

    def _on_snapshot_decided(self, event: RecordAnswer) -> list[Command]:
        ref, manifest = self._candidate_ref, self._candidate
        if self.settling is not Settling.RECORD or ref is None or manifest is None:
            return []
        if event.outcome is WriteOutcome.UNAVAILABLE:
            return self._not_decided("too few store members answered", event.now_ms)
        if event.outcome is WriteOutcome.UNKNOWN:
            return self._stop_undecided()
        dropped = self.record.snapshots[self.config.retained_snapshots - 1 :]
        self.record = self._record_with(ref, event.now_ms)
        self._outcome = True
        self._apply_outcome()
        self._retained[ref.snapshot_id] = {
            vertex: frozenset(names) for vertex, names in manifest.chunk_sets().items()
        }
        self._candidate = self._candidate_ref = None
        self._epochs_deciding = 0
        if self.phase is Phase.DECIDING:
            self.phase = Phase.READY
        commands = self._garbage(dropped)
        if ref.committed:
            self.settling, self._settled_ms = Settling.NONE, event.now_ms
            commands += self._after_settling()
        else:
            self.settling = Settling.COMMITTING
            # Crash window: the record names the artifacts, nobody has committed them yet (F8).
            commands.insert(0, _commit(manifest, recovering=False))
        return [*commands, *self._stop_for_failed_meanwhile()]

    def _garbage(self, dropped: tuple[SnapshotRef, ...]) -> list[Command]:
        """What only dropped snapshots needed. Safe for a sleeper: history never grows back."""
        if not dropped:
            return []
        gone: dict[str, set[str]] = {}
        for ref in dropped:
            for vertex, names in self._retained.pop(ref.snapshot_id, {}).items():
                gone.setdefault(vertex, set()).update(names)
        for kept in self._retained.values():
            for vertex, names in kept.items():
                gone.get(vertex, set()).difference_update(names)
        return [
            CollectGarbage(
                tuple(ref.manifest_name for ref in dropped),
                {vertex: frozenset(names) for vertex, names in gone.items() if names},
            )
        ]

    # --- phase 2 --------------------------------------------------------------------------------

    def _on_committed(self, event: Committed) -> list[Command]:
        recovering = self.phase is Phase.RECOMMITTING
        if not recovering and self.settling is not Settling.COMMITTING:
            # Also a dead execution's answer that comes before our own claim has been answered.
            return []
        if event.execution_id != self.record.execution_id:
            return []
        ref = self.record.snapshot
        if ref is None or ref.snapshot_id != event.snapshot_id or ref.committed:
            return []
        self.record = replace(
            self.record,
            snapshots=(replace(ref, committed=True), *self.record.snapshots[1:]),
            updated_at_ms=event.now_ms,
        )
        self.settling = Settling.NOTING
        note: list[Command] = [WriteRecord(Purpose.COMMITTED, self.record)]
        return [*note, *self._abort_leftovers()] if recovering else note

    def _on_commit_noted(self, event: RecordAnswer) -> list[Command]:
        # If the note did not arrive, a restart commits once more, which changes nothing.
        if self.settling is not Settling.NOTING:
            return []
        self.settling = Settling.NONE
        self._settled_ms = event.now_ms
        return self._after_settling() if self.phase is Phase.READY else []

    def _after_settling(self) -> list[Command]:
        return self._stop_asked_for() if self._stop_kind is not None else []

    # --- the end --------------------------------------------------------------------------------

    def _stop_asked_for(self) -> list[Command]:
        kind = self._stop_kind
        assert kind is not None
        self.phase = Phase.STOPPED
        return [
            Stop(
                kind.final_status,
                kind.cause,
                "cancelled" if kind is StopKind.CANCEL else kind.value,
                restart=kind is StopKind.RESTART,
                write_status=True,
            )
        ]

    @property
    def _may_begin_again(self) -> bool:
        """False once a stop was asked for after which the job stays down, come what may (F21)."""
        return self._stop_kind not in (StopKind.SUSPEND, StopKind.SHUTDOWN, StopKind.CANCEL)

    def _stop_undecided(self) -> list[Command]:
        """Neither commit nor clean up: whoever starts next reads what the record says."""
        self.phase = Phase.STOPPED
        reason = "the outcome of a record write is unknown"
        again = self._may_begin_again
        return [Stop(self.record.status, StopCause.UNDECIDED, reason, restart=again)]

    def _stop_failed(self, reason: str, restartable: bool) -> list[Command]:
        if not self.settling.is_decided:
            # Another record write could take back a decision that is on its way: first its answer.
            self._failed_meanwhile = self._failed_meanwhile or Failed(reason, restartable)
            self.phase = Phase.DECIDING
            return []
        self.phase = Phase.STOPPED
        if restartable and self._may_begin_again:
            return [Stop(JobStatus.NOT_RUNNING, StopCause.ERROR, reason, restart=True)]
        kind = self._stop_kind
        if kind is not None and (restartable or kind is StopKind.CANCEL):
            return [Stop(kind.final_status, kind.cause, reason, write_status=True)]
        status = JobStatus.SUSPENDED if self.config.suspend_on_failure else JobStatus.FAILED
        return [Stop(status, StopCause.ERROR, reason, write_status=True)]

    def _stop_for_failed_meanwhile(self) -> list[Command]:
        failed = self._failed_meanwhile
        if failed is None or self.phase is Phase.STOPPED:
            return []
        return self._stop_failed(failed.reason, failed.restartable)


def _commit(manifest: Manifest, *, recovering: bool) -> Commit:
    return Commit(
        manifest.snapshot_id, manifest.artifacts, recovering, manifest.prepared, manifest.sinks
    )


def _distinct(acks: Iterable[Ack]) -> tuple[Ack, ...]:
    """The same answer delivered twice is one answer; two answers of two attempts are not."""
    unique: dict[tuple[str, int, str], Ack] = {}
    for ack in acks:
        unique.setdefault((ack.vertex, ack.shard, ack.attempt), ack)
    return tuple(unique.values())
