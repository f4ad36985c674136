"""The execution record: the one small, linearizable value per job that decides everything.

It is kept in a quorum register (`dagster_jet.store.register`). Everything that it names is valid,
or is completed after a crash. Nothing else counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import JetError

RECORD_FORMAT = 1


class JobStatus(str, Enum):
    """Status of a job. Only `COMPLETED` and `FAILED` are final for an execution."""

    NOT_RUNNING = "NOT_RUNNING"
    """No execution has the job; the next start continues from the last snapshot.
    `ExecutionRecord.failure` is set if the job gave up after failed executions."""
    STARTING = "STARTING"
    """An execution won the record and is restoring, committing again, rolling back."""
    RUNNING = "RUNNING"
    """Epochs are being run."""
    COMPLETING = "COMPLETING"
    """A stop was requested; the terminal snapshot is under way."""
    SUSPENDED = "SUSPENDED"
    """Stopped on purpose, or by a failure with ``suspend_on_failure``; waits for ``resume``."""
    DRAINED = "DRAINED"
    """Only of a `JobResult`: the run has read all input that was there, as `until="drained"` says,
    and nothing has asked it to stop. The record says NOT_RUNNING."""
    COMPLETED = "COMPLETED"
    """The inputs are over and everything is committed."""
    FAILED = "FAILED"
    """Ended by an error (`ExecutionRecord.failure`) or cancelled."""

    @property
    def is_live(self) -> bool:
        """Whether an execution has the job, according to the record."""
        return self in (JobStatus.STARTING, JobStatus.RUNNING, JobStatus.COMPLETING)


class StopCause(str, Enum):
    """Why an execution ended. Programs evaluate the cause; the text beside it is for people."""

    SUSPEND = "suspend"
    """Requested, as are the four that follow."""
    RESTART = "restart"
    SHUTDOWN = "shutdown"
    COMPLETE = "complete"
    CANCEL = "cancel"
    ERROR = "error"
    """A failure."""
    GAVE_UP = "gave up"
    """Executions failed repeatedly until the process began no other one."""
    FENCED = "fenced"
    """A newer execution owns the job."""
    LOST = "lost"
    """The process is gone without writing a cause. Never written; observers infer it."""
    UNDECIDED = "undecided"
    """The outcome of a write of the record is unknown; the next execution reads the record."""
    DELETE = "delete"
    """The job is being deleted; nothing starts it until the deletion is over."""
    OTHER = "other"
    """A cause of a newer version."""

    @property
    def stays_down(self) -> bool:
        """Whether the job was stopped on purpose, so that no supervisor starts it again."""
        return self in (StopCause.SUSPEND, StopCause.CANCEL, StopCause.DELETE)

    @classmethod
    def _missing_(cls, value: object) -> StopCause:
        return cls.OTHER


class Doing(str, Enum):
    """Activity of a living execution."""

    STARTING = "starting"
    """Starting Spark, then recovering from the last snapshot."""
    ASKING = "asking the sources"
    IDLE = "waiting for input"
    EPOCH = "running an epoch"
    SAVING = "saving a snapshot"
    COMMITTING = "committing a snapshot"
    OTHER = "something that this version has no word for"

    @classmethod
    def _missing_(cls, value: object) -> Doing:
        return cls.OTHER


@dataclass(frozen=True)
class Activity:
    """An execution's activity when it renewed its lease."""

    doing: Doing
    for_ms: int
    """Duration of the activity by then, by the execution's own clock."""
    error: str = ""
    """The operation that is being retried meanwhile, and why it fails."""

    def is_stuck(self, after_ms: int) -> bool:
        """Whether the activity takes too long. Waiting for input never does."""
        return self.doing is not Doing.IDLE and self.for_ms >= after_ms

    def __str__(self) -> str:
        if self.doing is Doing.IDLE:
            return str(self.doing.value)
        error = f": {self.error}" if self.error else ""
        return f"{self.doing.value} for {self.for_ms / 1000:.0f} s{error}"


@dataclass(frozen=True)
class Lease:
    """The process that drives the job, and how long others should believe it.

    A lease saves time and never authorises anything: safety depends on the register's ballot alone.
    """

    owner: str
    host: str
    pid: int
    process_started_at_ms: int
    renewed_at_ms: int
    ttl_ms: int
    run_id: str | None = None
    """The orchestrator's name for the owning process (a Dagster run id), for people."""
    pid_scope: str = ""
    """Boot and PID namespace in which `pid` is valid. Empty: not known."""
    activity: Activity | None = None
    """None: not known."""

    @property
    def process(self) -> tuple[str, str, int, int]:
        """Identity of the owning process, which may have one execution after another."""
        return self.host, self.pid_scope, self.pid, self.process_started_at_ms


@dataclass(frozen=True)
class SnapshotRef:
    """A complete snapshot: its manifest in the store, and the checksum to verify it."""

    snapshot_id: int
    epoch_id: int
    execution_id: int
    manifest_name: str
    manifest_checksum: int
    taken_at_ms: int
    state_bytes: int
    committed: bool = False
    """Phase 2 is known to be over. False: commit (again) before anything else."""
    holds: bool = False
    """Its manifest holds output of sinks back, which a start commits before anything else."""
    unconfirmed: bool = False
    """A source has not confirmed all acknowledgements: a start remembers what may come again."""

    @property
    def is_all_committed(self) -> bool:
        """Whether all output that it names is committed."""
        return self.committed and not self.holds


@dataclass(frozen=True)
class ExecutionRecord:
    """All facts about a job that need agreement, in one value."""

    job: str
    execution_id: int
    status: JobStatus
    timeline: int = 1
    """Grows when newer snapshots are abandoned (rewind), so old markers cannot match."""
    rewound_to: int | str | None = None
    """The last ``initial_snapshot`` that was applied; None once an execution began without one."""
    rewound_by: int | None = None
    """Execution that applied it."""
    snapshots: tuple[SnapshotRef, ...] = ()
    """Newest first. The first is the restart point; the others are retained."""
    first_execution_id: int = 0
    """Execution with which the job began. A job that was deleted begins anew: with a later one, and
    with the snapshot ids and the timeline of a new job. 0: not known."""
    reserved_snapshot_id: int = 0
    """The highest snapshot id that may be in use. Ids grow with every attempt, also failed ones."""
    lease: Lease | None = None
    restarts: int = 0
    """Executions that began because an earlier one ended unrequested."""
    fruitless: int = 0
    """Consecutive executions that ended unrequested and neither decided a snapshot nor waited for
    input. Reset to 0 when the job decides a snapshot or is asked to stop."""
    cause: StopCause | None = None
    """Why the last execution ended; None while one has the job."""
    failure: str | None = None
    """Details of the cause, for people."""
    healthy_ms: int = 0
    """Total healthy time of all executions, by their own clocks: epochs ended, or there was no
    input. It only grows. A stream without input takes no snapshots and is healthy."""
    members_max: int = 0
    """Largest number of store members that any execution has seen; it only grows."""
    held_writers: dict[str, int] = field(default_factory=dict)
    """Per sink with held transactions: the largest number of writers of any execution. So many are
    asked for transactions that they left open. It only grows."""
    plan_fingerprint: str = ""
    definition: str = ""
    """Digest of the pipeline's definition (`Graph.definition`) that the newest execution runs."""
    updated_at_ms: int = 0
    format: int = RECORD_FORMAT

    @property
    def snapshot(self) -> SnapshotRef | None:
        """The newest snapshot, from which the job continues; None before the first."""
        return self.snapshots[0] if self.snapshots else None

    def is_new_for(self, guarantee: Guarantee) -> bool:
        """Whether no epoch can be visible in a sink yet, except by others or a weaker guarantee.

        Without a guarantee there are no snapshots: every start is from scratch. The first snapshot
        has no epoch. After it nothing is visible under exactly-once, but maybe under at-least-once.
        """
        if guarantee is Guarantee.NONE:
            return False
        if guarantee is Guarantee.EXACTLY_ONCE and self.snapshot is not None:
            return self.snapshot.epoch_id == 0
        return self.snapshot is None

    @property
    def fruitless_now(self) -> int:
        """`fruitless`, once the execution that has this record is known to be dead."""
        has_decided = self.snapshot is not None and self.snapshot.execution_id == self.execution_id
        activity = self.lease.activity if self.lease is not None else None
        was_idle = activity is not None and activity.doing is Doing.IDLE
        return 0 if has_decided or was_idle else self.fruitless + 1

    def most_held_writers(self, now: Mapping[str, int]) -> dict[str, int]:
        """`held_writers`, including those of an execution that begins."""
        before = self.held_writers
        return {**before, **{sink: max(n, before.get(sink, 0)) for sink, n in now.items()}}

    def with_lease(self, lease: Lease | None) -> ExecutionRecord:
        """The record with another lease."""
        return replace(self, lease=lease)

    def with_snapshot(self, ref: SnapshotRef, retained: int) -> ExecutionRecord:
        """The record that decides a snapshot; the oldest beyond `retained` are dropped."""
        snapshots = (ref, *self.snapshots)[:retained]
        return replace(self, snapshots=snapshots, updated_at_ms=ref.taken_at_ms)

    def with_note(
        self, now_ms: int, *, includes_held: bool = False, is_confirmed: bool = True
    ) -> ExecutionRecord:
        """The record with the note that phase 2 of the newest snapshot is over.

        Args:
            includes_held: what the snapshot has held back is committed, too.
            is_confirmed: see `acknowledge`.
        """
        newest, *older = self.snapshots
        noted = replace(
            newest,
            committed=True,
            holds=newest.holds and not includes_held,
            unconfirmed=newest.unconfirmed or not is_confirmed,
        )
        snapshots = (noted, *older)
        return replace(self, snapshots=snapshots, updated_at_ms=now_ms)

    def imports(self, wanted: int | str | None) -> bool:
        """Whether this ``initial_snapshot`` is an export that has to be imported first."""
        return isinstance(wanted, str) and wanted != self.rewound_to

    def imported(self, ref: SnapshotRef, wanted: str) -> ExecutionRecord:
        """The record of an execution that begins with an export, already in the job's own map.

        Abandons all earlier snapshots of the job. Applied once, like `rewound`.
        """
        timeline = self.timeline + 1
        return self._rewound((ref,), timeline, wanted)

    def rewound(self, wanted: int | str | None) -> ExecutionRecord:
        """The record of an execution that begins with this ``initial_snapshot``. An export that has
        to be imported first changes nothing yet.

        Newer snapshots are abandoned and a new timeline begins, but only once: every later start
        has the same setting, in this process or in a supervisor's run. A start without the setting
        clears `rewound_to`, so that the next one can go back to the same snapshot again.

        Raises:
            JetError: the snapshot is not retained.
        """
        if wanted == self.rewound_to:
            return self
        if wanted is None:
            return replace(self, rewound_to=None, rewound_by=None)
        if isinstance(wanted, str):
            return self
        kept = tuple(ref for ref in self.snapshots if ref.snapshot_id <= wanted)
        if not kept or kept[0].snapshot_id != wanted:
            known = ", ".join(str(ref.snapshot_id) for ref in self.snapshots) or "none"
            raise JetError(
                f"snapshot {wanted} is not retained; there are: {known}.",
                job=self.job,
                cure="Choose one of them, or leave initial_snapshot out.",
            )
        # Going back to the newest snapshot abandons nothing, so the timeline continues.
        timeline = self.timeline if kept == self.snapshots else self.timeline + 1
        return self._rewound(kept, timeline, wanted)

    def _rewound(
        self, snapshots: tuple[SnapshotRef, ...], timeline: int, wanted: int | str
    ) -> ExecutionRecord:
        return replace(
            self,
            snapshots=snapshots,
            timeline=timeline,
            rewound_to=wanted,
            rewound_by=self.execution_id,
        )

    def to_bytes(self) -> bytes:
        """The record as JSON, for its register."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ExecutionRecord:
        """Raises `StoreMismatchError` for a record written by a newer version."""
        fields: dict[str, Any] = json.loads(data)
        check_format("the execution record", fields["format"], RECORD_FORMAT, job=fields["job"])
        fields["status"] = JobStatus(fields["status"])
        fields["cause"] = None if fields["cause"] is None else StopCause(fields["cause"])
        fields["snapshots"] = tuple(SnapshotRef(**ref) for ref in fields["snapshots"])
        fields["lease"] = _lease(fields["lease"]) if fields["lease"] else None
        return cls(**fields)


def _lease(fields: dict[str, Any]) -> Lease:
    activity = fields["activity"]
    if activity is not None:
        activity = Activity(**{**activity, "doing": Doing(activity["doing"])})
    return Lease(**{**fields, "activity": activity})
