"""What a running job tells whoever watches it (the face, Dagster, a terminal).

Events are emitted on the job's driver thread, in order, after the fact is durable: losing one
is harmless, the store's record and manifests say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.core.columns import StageColumn
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.phases import PhaseTime
from dagster_jet.snapshot.owed import SinkFate
from dagster_jet.snapshot.record import JobStatus, StopCause


@dataclass(frozen=True)
class SourceProgress:
    """One source as of one barrier. Times are milliseconds, event time or epoch as named."""

    rows_read: int
    position: dict[str, Any]
    lag: dict[str, int | float]
    """What is known to be waiting: {"files": 3, "bytes": 1024}."""
    partition_lag: dict[str, int] = field(default_factory=dict)
    """Items that are known to wait, by partition; of sources whose partitions have watermarks."""
    watermark_ms: int | None = None
    idle: bool = False
    lost: int = 0
    """Items that were dropped outside before this job has read them; since the job began."""
    unavailable_since_ms: int | None = None
    """Wall-clock time since which it cannot be read; None: it can. The job waits for it, and goes
    on with its other sources."""
    unavailable: str | None = None
    """Why, for people."""


@dataclass(frozen=True)
class StageProgress:
    """One named stage (source, stateful stage or sink): totals since the job began."""

    rows_in: int
    rows_out: int
    late: int = 0
    rejected: int = 0
    watermark_ms: int | None = None
    state_rows: int = 0
    held_back_by: str | None = None
    """The source that keeps the watermark where it is; None if all are idle."""
    held_back_since_ms: int | None = None
    """Wall-clock time of its last watermark, or since which it has been waited for."""
    held_back_partition: str | None = None
    """The source's partition that does; None: the source as a whole."""
    next_due_ms: int | None = None
    """Event time up to which the watermark has to get before more of the state is due, at the
    latest: the end of the next window. None: nothing in the state waits for it."""


@dataclass(frozen=True)
class ExecutionStarted:
    """Restored, committed again, cleaned up: data is about to flow."""

    job: str
    execution_id: int
    restarts: int
    restored_snapshot_id: int | None
    restored_epoch_id: int | None
    start_duration_ms: int
    stages: dict[str, StageProgress] = field(default_factory=dict)
    sources: dict[str, SourceProgress] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineAnalysed:
    """Spark has planned every stage; comes before `ExecutionStarted`."""

    job: str
    execution_id: int
    columns: Callable[[], Mapping[str, tuple[StageColumn, ...]]] = field(compare=False, repr=False)
    """Returns the columns of every source, stateful stage and sink, and what they are made of. It
    asks Spark's driver for tenths of a second, so call it on a thread of your own, while Spark
    runs. Nobody pays for it who does not call it."""


@dataclass(frozen=True)
class EpochCompleted:
    """One epoch was acked by all. Nothing of it is committed yet."""

    job: str
    execution_id: int
    epoch_id: int
    rows: int
    duration_ms: float
    times: tuple[PhaseTime, ...] = ()
    """Where the time went: the driver's phases, and what the action consists of."""


@dataclass(frozen=True)
class ProgressReported:
    """How far the job is, every few seconds if something has changed, whether snapshots succeed or
    not. Totals are as of the last acked epoch: of what is not in a snapshot nothing is committed.
    """

    job: str
    execution_id: int
    stages: dict[str, StageProgress]
    sources: dict[str, SourceProgress]
    """Without their positions, which have no bound."""


@dataclass(frozen=True)
class GuaranteeLowered:
    """A source or sink gives less than the job asks for; told at every start."""

    job: str
    execution_id: int
    stage: str
    wanted: Guarantee
    effective: Guarantee


@dataclass(frozen=True)
class SourceUnavailable:
    """A source has not been readable for a while. The job waits for it, and goes on with others."""

    job: str
    source: str
    since_ms: int
    reason: str


@dataclass(frozen=True)
class SourceAvailable:
    """After a `SourceUnavailable`: it is read again."""

    job: str
    source: str
    unavailable_since_ms: int


@dataclass(frozen=True)
class ItemsLost:
    """A source has dropped items before they were read (a journal has overflowed)."""

    job: str
    execution_id: int
    source: str
    lost: int
    """In the epoch that was just acked."""
    lost_in_all: int
    """Since the job began, as of that epoch."""


@dataclass(frozen=True)
class SinkReopened:
    """A start has committed what was decided for a sink that the pipeline no longer has, or has
    elsewhere: at the place for which it was staged."""

    job: str
    execution_id: int
    sink: str
    fate: SinkFate
    place: str | None
    epoch_ids: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class OutputLost:
    """Decided output that will never be visible; `JobConfig(accept_loss=True)` has let it go."""

    job: str
    execution_id: int
    sink: str
    epoch_ids: tuple[int, ...]
    rows: int
    artifacts: tuple[str, ...]
    """Their tokens: what was staged, by its connector's name."""
    reason: str


@dataclass(frozen=True)
class OutputRefused:
    """Decided rows that a sink's place refuses; `JobConfig(refused_to_dead_letters=True)` has sent
    them to the sink's dead-letter sink, and committed the epoch without them."""

    job: str
    execution_id: int
    sink: str
    epoch_id: int
    rows: int
    dead_letter_sink: str
    reason: str
    """Of the first of them."""


@dataclass(frozen=True)
class InputLost:
    """Input that was deleted before a snapshot had it; `JobConfig(accept_loss=True)` has let it go.

    An execution that has died had read it; nothing of it counts.
    """

    job: str
    execution_id: int
    source: str
    epoch_ids: tuple[int, ...]
    input: tuple[str, ...]


@dataclass(frozen=True)
class InputIgnored:
    """The job is COMPLETED and was run again: it reads nothing more, and something waits."""

    job: str
    source: str
    waiting: dict[str, int]
    """In the source's units: {"files": 3, "bytes": 1024}."""


@dataclass(frozen=True)
class SnapshotCommitted:
    """Phase 2 of a snapshot is done: its output is visible, its state is the restart point."""

    job: str
    execution_id: int
    snapshot_id: int
    epoch_id: int
    restarts: int
    phase1_ms: float
    """From the end of the epoch's tasks to the decision in the record."""
    phase2_ms: float
    bytes_written: int
    """State chunks that this snapshot added (one replica)."""
    state_bytes: int
    failed_snapshots: int
    stages: dict[str, StageProgress] = field(default_factory=dict)
    sources: dict[str, SourceProgress] = field(default_factory=dict)


@dataclass(frozen=True)
class SnapshotFailed:
    """A snapshot was discarded before its decision; the job lives and tries again."""

    job: str
    execution_id: int
    reason: str
    failed_snapshots: int


@dataclass(frozen=True)
class SnapshotDropped:
    """An older retained snapshot was found damaged at a start. The job does without it; nothing
    can go back to it any more."""

    job: str
    execution_id: int
    snapshot_id: int
    reason: str


@dataclass(frozen=True)
class ExecutionRestarting:
    """A restartable failure: a new execution begins in this process after `delay_ms`."""

    job: str
    execution_id: int
    reason: str
    attempt: int
    delay_ms: int


@dataclass(frozen=True)
class ExecutionEnded:
    """The last event of an execution in this process."""

    job: str
    execution_id: int
    status: JobStatus
    cause: StopCause
    reason: str
    """For people."""


@dataclass(frozen=True)
class MembersRepaired:
    """The store goes on without members that stayed away longer than `member_timeout`; what they
    held has all its replicas again."""

    job: str
    members: tuple[str, ...]
    partitions: int
    """That were given to others."""
    bytes: int
    """Copied to them."""


@dataclass(frozen=True)
class MembersNotRepaired:
    """Members stay away, and the store cannot go on without them."""

    job: str
    members: tuple[str, ...]
    reason: str
    """For people; with the cure."""


JobEvent = (
    PipelineAnalysed
    | ExecutionStarted
    | EpochCompleted
    | ProgressReported
    | GuaranteeLowered
    | SourceUnavailable
    | SourceAvailable
    | ItemsLost
    | InputIgnored
    | SinkReopened
    | OutputLost
    | OutputRefused
    | InputLost
    | SnapshotCommitted
    | SnapshotFailed
    | SnapshotDropped
    | ExecutionRestarting
    | MembersRepaired
    | MembersNotRepaired
    | ExecutionEnded
)
"""Any event of a job."""
