"""The commands and events of the snapshot protocol.

The coordinator returns commands and receives events. Both are frozen values without behaviour,
shared by the engine and the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dagster_jet.core.guarantee import Guarantee as Guarantee  # noqa: PLC0414 - re-exported
from dagster_jet.core.phases import PhaseTime
from dagster_jet.snapshot.manifest import Ack, Artifact, Manifest, ShardState
from dagster_jet.snapshot.owed import Destination
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause


class StopKind(str, Enum):
    """Why an execution is asked to end; all but CANCEL take a terminal snapshot first."""

    SUSPEND = "suspend"
    """Stay down until resumed."""
    RESTART = "restart"
    """Begin a new execution at once."""
    SHUTDOWN = "shutdown"
    """The process ends (SIGTERM, Dagster cancel, a drained run); any other may continue the job."""
    COMPLETE = "complete"
    """The inputs end: final watermark, every window closed, the job is COMPLETED."""
    CANCEL = "cancel"
    """Stop now, without a snapshot; the job is FAILED (cancelled)."""
    CANCEL_AND_EXPORT = "cancel_and_export"
    """The job is FAILED (cancelled) after its terminal snapshot, which is then exported. Requested
    by `Job.cancel_and_export_snapshot`, which gives the export's name."""

    @property
    def cause(self) -> StopCause:
        """The record's cause for an execution that ended this way."""
        if self is StopKind.CANCEL_AND_EXPORT:
            return StopCause.CANCEL
        return StopCause(self.value)

    @property
    def final_status(self) -> JobStatus:
        """The job's status after the stop."""
        match self:
            case StopKind.SUSPEND:
                return JobStatus.SUSPENDED
            case StopKind.COMPLETE:
                return JobStatus.COMPLETED
            case StopKind.CANCEL | StopKind.CANCEL_AND_EXPORT:
                return JobStatus.FAILED
            case StopKind.RESTART | StopKind.SHUTDOWN:
                return JobStatus.NOT_RUNNING


def stop_that_counts(first: StopKind | None, second: StopKind) -> StopKind:
    """Returns the effective one of two stop requests to an execution: the first. But every kind
    overrides RESTART, after which the job would continue, and CANCEL overrides all."""
    if first in (None, StopKind.RESTART) or second is StopKind.CANCEL:
        return second
    return first


class Purpose(str, Enum):
    """Purpose of a write of the record."""

    STARTING = "starting"
    """An execution has won the record; the write reserves its snapshot ids."""
    REWOUND = "rewound"
    """An older or imported snapshot becomes the newest; it is restored already, and it fits."""
    RUNNING = "running"
    """All older output is committed or rolled back; epochs follow."""
    SNAPSHOT = "snapshot"
    """The decision: the snapshot is valid."""
    COMMITTED = "committed"
    """The note that phase 2 is over."""
    RESERVED = "reserved"
    """More snapshot ids, after many attempts without a decision."""
    LEASE = "lease"
    """The newest record with a renewed lease."""


class WriteOutcome(Enum):
    """Result of a write to the record."""

    WRITTEN = "written"
    FENCED = "a newer execution owns the record"
    UNAVAILABLE = "certainly not written"
    UNKNOWN = "perhaps written"


# --- commands to the caller ----------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """Win the record under the next execution id; answer `Claimed`."""


@dataclass(frozen=True)
class LoadManifest:
    """Read and validate the manifest of `ref`; answer `ManifestLoaded`."""

    ref: SnapshotRef


@dataclass(frozen=True)
class ImportSnapshot:
    """Copy an exported snapshot into the job's own map, as a snapshot of this execution that no
    record names yet; answer `SnapshotImported`."""

    export: str
    snapshot_id: int
    timeline: int


@dataclass(frozen=True)
class Restore:
    """Bring the state of `manifest` into local runs; answer `Restored`."""

    manifest: Manifest


@dataclass(frozen=True)
class AbortOrphans:
    """Roll back what older executions left open and delete what nothing references.

    Only objects with an execution id below ours may be touched: a paused process that wakes up in
    here must not harm its successor.
    """

    execution_id: int
    keep: tuple[SnapshotRef, ...]


@dataclass(frozen=True)
class RunEpoch:
    """Run one epoch; answer `EpochAcked` or `EpochFailed`."""

    execution_id: int
    epoch_id: int
    snapshot_id: int | None
    terminal: bool
    """Take no new input; this is the last epoch of the execution."""
    final: bool
    """The inputs are over: run under the final watermark."""


@dataclass(frozen=True)
class Publish:
    """Below exactly-once: make an epoch's artifacts visible at once; answer `Published`."""

    epoch_id: int
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True)
class Decide:
    """S4 to S6: wait until the state behind every ack is in the store, write the manifest, write
    the record that names it; answer `Decided`."""

    manifest: Manifest
    """As of the barrier; its chains lack the chunk sets of `acks`."""
    acks: tuple[Ack, ...]
    record: ExecutionRecord
    """The record with the decision's changes, without the new snapshot."""
    retained_snapshots: int


@dataclass(frozen=True)
class Complete:
    """Phase 2, S7 and S8: commit idempotently all that the record's newest snapshot names, and note
    it in the record; answer `Completed`."""

    manifest: Manifest
    record: ExecutionRecord
    recovering: bool
    """True: a dead execution decided the snapshot."""


@dataclass(frozen=True)
class WriteRecord:
    """Write statuses and reserved ids to the record under our ballot; answer `RecordAnswer`."""

    purpose: Purpose
    record: ExecutionRecord


@dataclass(frozen=True)
class CollectGarbage:
    """Delete manifests and chunk sets that no retained snapshot needs. Best effort."""

    manifests: tuple[str, ...]
    chunk_sets: Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Stop:
    """The execution is over; `restart`: begin a new one in this process."""

    status: JobStatus
    cause: StopCause
    reason: str
    """For people."""
    restart: bool = False
    write_status: bool = False
    """False where the record must not be touched (fenced, or its state is unknown), and where the
    next execution writes it."""


Command = (
    Claim
    | LoadManifest
    | ImportSnapshot
    | Restore
    | AbortOrphans
    | RunEpoch
    | Publish
    | Decide
    | Complete
    | WriteRecord
    | CollectGarbage
    | Stop
)

# --- events from the caller ----------------------------------------------------------------------


@dataclass(frozen=True)
class Claimed:
    """The record is ours; `record` is the last agreed value, already under our execution id."""

    record: ExecutionRecord
    decides_every_epoch: bool = False
    """Some stage's processors commit in two phases. A processor lives for one epoch, and the next
    one commits what the state holds of it, so no epoch may begin from an undecided state. Each
    epoch ends in a snapshot, waits for the previous phase 2, and is lost if its snapshot fails."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Meaning of each stage's saved state; part of every manifest."""
    sinks: Mapping[str, Destination] = field(default_factory=dict)
    """Destination of each sink; part of every manifest."""
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Versions of tables to enrich with; part of a new job's first manifest."""
    held_writers: Mapping[str, int] = field(default_factory=dict)
    """Number of writers per sink with held transactions; the record keeps the maximum."""


@dataclass(frozen=True)
class ManifestLoaded:
    manifest: Manifest


@dataclass(frozen=True)
class SnapshotImported:
    """`ref` is the reference for the record once the snapshot is restored."""

    ref: SnapshotRef
    manifest: Manifest


@dataclass(frozen=True)
class Restored:
    shards: Mapping[str, tuple[ShardState, ...]]
    lost_output: frozenset[str] = frozenset()
    """Sinks whose place came back without its committed output, which is accepted."""


@dataclass(frozen=True)
class OrphansAborted:
    """`retained`: chunk sets needed by the retained snapshots, by snapshot id.

    `damaged`: retained snapshots whose manifest is not whole. Nothing that they may need was
    deleted. The record no longer names them from here on, so the next start may delete it.
    """

    retained: Mapping[int, Mapping[str, frozenset[str]]]
    sources: Mapping[str, Any]
    watermarks: Mapping[str, Any]
    now_ms: int
    damaged: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Tick:
    """The sources have been polled: an epoch could begin now."""

    now_ms: int
    wants_epoch: bool
    """There is input, or a watermark or timer moved."""
    stop: StopKind | None = None
    wants_snapshot: bool = False
    """A snapshot of everything read by now is requested."""
    writes_nothing: bool = False
    """The epoch certainly gives no rows to sinks: its snapshot makes nothing visible."""


@dataclass(frozen=True)
class CancelRequested:
    """The job is to be cancelled at once, even during recovery."""


@dataclass(frozen=True)
class EpochAcked:
    execution_id: int
    epoch_id: int
    acks: tuple[Ack, ...]
    sources: Mapping[str, Any]
    watermarks: Mapping[str, Any]
    now_ms: int
    unacknowledged: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per source, all messages that were read and are not acknowledged yet."""
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """At a snapshot: per stage, the version of a table that later epochs are enriched with."""


@dataclass(frozen=True)
class EpochFailed:
    execution_id: int
    epoch_id: int
    reason: str
    restartable: bool


@dataclass(frozen=True)
class Published:
    epoch_id: int


@dataclass(frozen=True)
class Decided:
    """Result of `Decide`. UNAVAILABLE: the snapshot is certainly not in the record."""

    manifest: Manifest
    """Complete, unless state could not be saved."""
    acks: tuple[Ack, ...]
    """Complete, unless waiting for their state failed."""
    record: ExecutionRecord
    """The record that was written, or was to be written."""
    outcome: WriteOutcome
    now_ms: int
    reason: str = ""
    """Why there is no snapshot."""
    times: tuple[PhaseTime, ...] = ()


@dataclass(frozen=True)
class Completed:
    """Phase 2 is over. `outcome` is that of the note; without the note the next start commits
    again, which changes nothing."""

    execution_id: int
    snapshot_id: int
    outcome: WriteOutcome
    now_ms: int
    times: tuple[PhaseTime, ...] = ()
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts about the commits, by sink, for people."""
    is_confirmed: bool = True
    """Whether all sources have confirmed their acknowledgements."""


@dataclass(frozen=True)
class RecordAnswer:
    purpose: Purpose
    outcome: WriteOutcome
    now_ms: int


@dataclass(frozen=True)
class Failed:
    """A command failed permanently (validation, restore, a lost artifact, a connector)."""

    reason: str
    restartable: bool
    completing: bool = False
    """The command is `Complete`: no `Completed` follows."""


Event = (
    Claimed
    | ManifestLoaded
    | SnapshotImported
    | Restored
    | Decided
    | Completed
    | OrphansAborted
    | Tick
    | CancelRequested
    | EpochAcked
    | EpochFailed
    | Published
    | RecordAnswer
    | Failed
)
