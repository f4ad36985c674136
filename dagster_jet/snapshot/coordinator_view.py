"""A frozen picture of the coordinator: what others may know, on whatever thread."""

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
    """The coordinator between two events."""

    recovery: RecoveryState = RecoveryState.CLAIMING
    cycle: CycleState = CycleState.RECOVERING
    pending: PendingState = PendingState.NONE
    record: ExecutionRecord | None = None
    """As it was last agreed on; None until the claim is answered."""
    shards: Mapping[str, tuple[ShardState, ...]] = field(default_factory=dict)
    counters: Mapping[str, Counters] = field(default_factory=dict)
    epochs_since_barrier: int = 0
    """Epochs that no snapshot has, not even a pending one; none under guarantee "none"."""
    undecided_epochs: int = 0
    """Epochs whose output no snapshot has decided about; none under guarantee "none"."""
    snapshot_due_at_ms: int | None = None
    """When an idle job should look again; None: nothing is waiting for a snapshot."""
    failures: int = 0
    """Snapshots of this execution that were given up."""
    last_failure: str | None = None

    @property
    def is_ready(self) -> bool:
        """An epoch could begin, as far as the one before it goes."""
        return self.cycle is CycleState.READY

    @property
    def is_pending(self) -> bool:
        """A snapshot is on its way, or another write of the record that none may overtake."""
        return self.pending is not PendingState.NONE

    @property
    def doing(self) -> Doing:
        """What takes longest, of what goes on at the same time: nothing overtakes phase 2."""
        if self.pending is PendingState.COMPLETING or self.recovery is RecoveryState.RECOMMITTING:
            return Doing.COMMITTING
        if self.is_pending:
            return Doing.SAVING
        if self.cycle in (CycleState.IN_EPOCH, CycleState.PUBLISHING):
            return Doing.EPOCH
        return Doing.IDLE if self.is_ready else Doing.STARTING
