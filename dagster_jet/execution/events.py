"""Events of a running job, for `Jet`, Dagster and terminals.

Events are emitted in order on the job's driver thread, after the fact is durable. A lost event does
no harm, because the store's record and manifests have the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_jet.core.columns import StageColumn
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.measures import counters_of, measured_of
from dagster_jet.core.phases import PhaseTime
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.owed import SinkChange
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause


@dataclass(frozen=True)
class SourceProgress:
    """Progress of one source as of one barrier. Times are milliseconds, in event time or since the
    epoch, as named."""

    rows_read: int
    position: dict[str, Any]
    lag: dict[str, int | float]
    """Known backlog: {"files": 3, "bytes": 1024}."""
    partition_lag: dict[str, int] = field(default_factory=dict)
    """Known backlog in items by partition, for sources whose partitions have watermarks."""
    watermark_ms: int | None = None
    idle: bool = False
    lost: int = 0
    """Items that the source's system dropped before the job read them, since the job's first start.
    """
    unavailable_since_ms: int | None = None
    """Wall-clock time since which the source cannot be read; None if it can. The job continues with
    its other sources."""
    unavailable: str | None = None
    """Reason in words."""


@dataclass(frozen=True)
class StageProgress:
    """Progress of one named stage (source, stateful stage or sink): totals since the job's first
    start."""

    rows_in: int
    rows_out: int
    late: int = 0
    rejected: int = 0
    watermark_ms: int | None = None
    state_rows: int = 0
    held_back_by: str | None = None
    """Source that holds the watermark back; None if all are idle."""
    held_back_since_ms: int | None = None
    """Wall-clock time of its last watermark, or since when the stage waits for it."""
    held_back_partition: str | None = None
    """Partition of the source that holds the watermark back; None for the source as a whole."""
    next_due_ms: int | None = None
    """Latest event time that the watermark must reach before more state is due: the end of the next
    window. None if no state waits for the watermark."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Counts of the stage's functions (`job_context().metrics`), by counter."""
    measured: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Their gauges and histograms by name, as JSON: `{"gauge": 0.5}`, or the sum and the numbers up
    to a bound, by bound, `{"sum": 7.5, "le": {"5.0": 3, "inf": 0}}`."""


def with_totals(progress: StageProgress, totals: Counters) -> StageProgress:
    """Returns the progress with these totals."""
    return replace(
        progress,
        rows_in=totals.rows_in,
        rows_out=totals.rows_out,
        late=totals.late,
        rejected=totals.rejected,
        counted=counters_of(totals.counted),
        measured=measured_of(totals.counted),
    )


@dataclass(frozen=True)
class ExecutionStarted:
    """The execution has restored, committed and cleaned up; epochs begin now."""

    job: str
    execution_id: int
    restarts: int
    restored_snapshot_id: int | None
    restored_epoch_id: int | None
    start_duration_ms: int
    stages: dict[str, StageProgress] = field(default_factory=dict)
    sources: dict[str, SourceProgress] = field(default_factory=dict)
    first_execution_id: int = 0
    """Execution with which the job began; another one after the job was deleted. 0: not known."""


@dataclass(frozen=True)
class PipelineAnalysed:
    """Spark has planned every stage; emitted before `ExecutionStarted`."""

    job: str
    execution_id: int
    columns: Callable[[], Mapping[str, tuple[StageColumn, ...]]] = field(compare=False, repr=False)
    """Returns the columns of every source, stateful stage and sink, and their lineage. A call takes
    Spark's driver tenths of a second, so make it on another thread, while Spark runs."""


@dataclass(frozen=True)
class EpochCompleted:
    """All tasks and sources have acked an epoch. Its output is not committed yet."""

    job: str
    execution_id: int
    epoch_id: int
    rows: int
    duration_ms: float
    times: tuple[PhaseTime, ...] = ()
    """Durations of the driver's phases and of the parts of the Spark action."""


@dataclass(frozen=True)
class ProgressReported:
    """The job's progress, every few seconds if something has changed, whether or not snapshots
    succeed. Totals are as of the last acked epoch, so they include rows that are not committed yet.
    """

    job: str
    execution_id: int
    stages: dict[str, StageProgress]
    sources: dict[str, SourceProgress]
    """Progress of the sources without positions, whose size is unbounded."""


@dataclass(frozen=True)
class GuaranteeLowered:
    """A source or sink has a weaker guarantee than the job asks for; emitted at every start."""

    job: str
    execution_id: int
    stage: str
    wanted: Guarantee
    effective: Guarantee


@dataclass(frozen=True)
class SourceUnavailable:
    """A source has been unreadable for a while. The job continues with its other sources."""

    job: str
    source: str
    since_ms: int
    reason: str


@dataclass(frozen=True)
class SourceAvailable:
    """A source can be read again after a `SourceUnavailable`."""

    job: str
    source: str
    unavailable_since_ms: int


@dataclass(frozen=True)
class ItemsLost:
    """The source's system has dropped items before they were read (a journal has overflowed)."""

    job: str
    execution_id: int
    source: str
    lost: int
    """Items lost in the epoch that was just acked."""
    lost_in_all: int
    """Items lost since the job's first start, as of that epoch."""


@dataclass(frozen=True)
class SinkReopened:
    """A start has committed decided output of a sink that was removed from the pipeline or writes
    elsewhere now. The output went to the place for which it was staged."""

    job: str
    execution_id: int
    sink: str
    change: SinkChange
    place: str | None
    epoch_ids: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class OutputLost:
    """Decided output that will never be visible; accepted by `accept_loss`."""

    job: str
    execution_id: int
    sink: str
    epoch_ids: tuple[int, ...]
    rows: int
    artifacts: tuple[str, ...]
    """Tokens of the lost artifacts, as the connector names them."""
    reason: str


@dataclass(frozen=True)
class OutputRefused:
    """A sink's place has refused decided rows. By `refused_to_dead_letters` they
    went to the sink's dead-letter sink, and the epoch was committed without them."""

    job: str
    execution_id: int
    sink: str
    epoch_id: int
    rows: int
    dead_letter_sink: str
    reason: str
    """Reason for the first refused row."""


@dataclass(frozen=True)
class InputLost:
    """Input that was deleted before a snapshot contained it; accepted by `accept_loss`.

    A dead execution had read it, but its epochs do not count.
    """

    job: str
    execution_id: int
    source: str
    epoch_ids: tuple[int, ...]
    input: tuple[str, ...]


@dataclass(frozen=True)
class InputIgnored:
    """A COMPLETED job was started again: it reads nothing, although input waits."""

    job: str
    source: str
    waiting: dict[str, int]
    """Waiting input in the source's units: {"files": 3, "bytes": 1024}."""


@dataclass(frozen=True)
class InitialSnapshotSkipped:
    """A start with an `initial_snapshot` that an earlier start has applied already."""

    job: str
    initial_snapshot: int | str
    applied_by: int
    """Execution that went back to it."""
    continues_from: int | None
    """Newest snapshot; None: the job is COMPLETED and does not continue."""

    @classmethod
    def by(cls, record: ExecutionRecord, wanted: int | str | None) -> InitialSnapshotSkipped | None:
        """Returns the event of a start that wants this `initial_snapshot`; None if it applies it.

        Args:
            record: as this start has found it.
            wanted: the start's `initial_snapshot`.
        """
        if wanted is None or wanted != record.rewound_to or record.rewound_by is None:
            return None
        newest = None if record.status is JobStatus.COMPLETED else record.snapshot
        snapshot_id = None if newest is None else newest.snapshot_id
        return cls(record.job, wanted, record.rewound_by, snapshot_id)

    @property
    def text(self) -> str:
        """Returns the event as one sentence."""
        follows = (
            "the job is COMPLETED and stays so"
            if self.continues_from is None
            else f"the job continues from snapshot {self.continues_from}"
        )
        return (
            f"initial_snapshot {self.initial_snapshot!r} was applied already by execution "
            f"{self.applied_by}; {follows}."
        )


@dataclass(frozen=True)
class SnapshotCommitted:
    """Phase 2 of a snapshot is done: its output is visible, and restarts begin from its state."""

    job: str
    execution_id: int
    snapshot_id: int
    epoch_id: int
    restarts: int
    phase1_ms: float
    """Duration from the end of the epoch's tasks to the decision in the record."""
    phase2_ms: float
    bytes_written: int
    """Bytes of state chunks that this snapshot added, in one replica."""
    state_bytes: int
    failed_snapshots: int
    stages: dict[str, StageProgress] = field(default_factory=dict)
    sources: dict[str, SourceProgress] = field(default_factory=dict)
    outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts about the commits, by sink, such as the version of a table."""
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Versions of the tables that rows are enriched with, by stage."""


@dataclass(frozen=True)
class SnapshotFailed:
    """A snapshot was discarded before its decision; the job continues and tries again."""

    job: str
    execution_id: int
    reason: str
    failed_snapshots: int


@dataclass(frozen=True)
class CutNotWritten:
    """A committed snapshot is not in the epochs table (`Jet(epochs_table=)`). The job goes on,
    and tries again with the next one."""

    job: str
    execution_id: int
    epoch_id: int
    reason: str
    failures: int
    """Number of failures in a row."""


@dataclass(frozen=True)
class SnapshotDropped:
    """A start has found an older retained snapshot damaged. The job drops it; no start can go back
    to it."""

    job: str
    execution_id: int
    snapshot_id: int
    reason: str


@dataclass(frozen=True)
class StandingBy:
    """This process is a standby: Spark is warm, and another process has the job."""

    job: str
    execution_id: int
    """The other process's execution."""
    run_id: str | None = None
    """The other process's `run_id`."""


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
    """Last event of an execution in this process."""

    job: str
    execution_id: int
    status: JobStatus
    cause: StopCause
    reason: str
    """For people."""


@dataclass(frozen=True)
class MembersRepaired:
    """The store has removed members that were away longer than `member_timeout`; their partitions
    have all replicas again."""

    job: str
    members: tuple[str, ...]
    partitions: int
    """Number of partitions that moved to other members."""
    bytes: int
    """Number of bytes copied to them."""


@dataclass(frozen=True)
class MembersNotRepaired:
    """Members are away, and the store cannot be repaired without them."""

    job: str
    members: tuple[str, ...]
    reason: str
    """Reason in words, with the cure."""


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
    | InitialSnapshotSkipped
    | SinkReopened
    | OutputLost
    | OutputRefused
    | InputLost
    | SnapshotCommitted
    | SnapshotFailed
    | CutNotWritten
    | SnapshotDropped
    | StandingBy
    | ExecutionRestarting
    | MembersRepaired
    | MembersNotRepaired
    | ExecutionEnded
)
"""Union of all events of a job."""
