"""A frozen view of the coordinator, safe to read on any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.snapshot.epoch_cycle import CycleState
from dagster_jet.snapshot.manifest import Counters, ShardState
from dagster_jet.snapshot.pending_snapshot import PendingState
from dagster_jet.snapshot.record import Doing, ExecutionRecord
from dagster_jet.snapshot.recovery import RecoveryState


@dataclass(frozen=True)
class CoordinatorView:
    """The coordinator's state between two events."""

    recovery: RecoveryState = RecoveryState.CLAIMING
    cycle: CycleState = CycleState.RECOVERING
    pending: PendingState = PendingState.NONE
    record: ExecutionRecord | None = None
    """The record as last agreed on; None until the claim is answered."""
    shards: Mapping[str, tuple[ShardState, ...]] = field(default_factory=dict)
    counters: Mapping[str, Counters] = field(default_factory=dict)
    epochs_since_barrier: int = 0
    """Epochs in no snapshot, not even a pending one; 0 under guarantee "none"."""
    undecided_epochs: int = 0
    """Epochs whose output is not decided yet; 0 under guarantee "none"."""
    snapshot_due_at_ms: int | None = None
    """Time of an idle job's next snapshot; None: nothing waits for a snapshot."""
    is_failing: bool = False
    """A failure ends the execution after the writes and commits that are under way."""
    failures: int = 0
    """Discarded snapshots of this execution."""
    last_failure: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the epoch cycle can begin an epoch."""
        return self.cycle is CycleState.READY

    @property
    def is_pending(self) -> bool:
        """Whether a snapshot or another record write is under way; record writes never overlap."""
        return self.pending is not PendingState.NONE

    @property
    def doing(self) -> Doing:
        """The longest of the concurrent activities; nothing overtakes phase 2."""
        if self.pending is PendingState.COMPLETING or self.recovery is RecoveryState.RECOMMITTING:
            return Doing.COMMITTING
        if self.is_pending:
            return Doing.SAVING
        if self.cycle in (CycleState.IN_EPOCH, CycleState.PUBLISHING):
            return Doing.EPOCH
        return Doing.IDLE if self.is_ready else Doing.STARTING
