"""The epoch cycle: one epoch after another, some of them with a snapshot at their end.

RECOVERING -> READY -> IN_EPOCH -> [PUBLISHING] -> READY
RECOVERING, IN_EPOCH, PUBLISHING -> AWAITING_DECISION -> READY    (no epoch runs meanwhile)
any -> STOPPED
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import ClassVar

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.snapshot.job_state import JobState
from dagster_jet.snapshot.machine import Machine, Moves
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.snapshot.newest_output import newest_of
from dagster_jet.snapshot.pending_snapshot import PendingSnapshot, PendingState
from dagster_jet.snapshot.protocol import (
    Command,
    EpochAcked,
    EpochFailed,
    Failed,
    Publish,
    Published,
    RunEpoch,
    StopKind,
    Tick,
)


class CycleState(Enum):
    """State of the execution between epochs. Only `READY` accepts a `Tick`."""

    RECOVERING = "recovering"
    """No data flows yet."""
    READY = "ready"
    IN_EPOCH = "in an epoch"
    PUBLISHING = "publishing the epoch's output"
    """Below exactly-once only; the epoch does not count yet."""
    AWAITING_DECISION = "awaiting a decision"
    """The first snapshot, the last one, or a failure beside a pending one or beside its commits: no
    epoch may begin."""
    STOPPED = "stopped"


_RECOVERING, _READY, _IN_EPOCH, _PUBLISHING, _AWAITING, _STOPPED = CycleState


class EpochCycle(Machine[CycleState]):
    """Starts epochs and applies their answers."""

    moves: ClassVar[Moves] = {
        _RECOVERING: frozenset({_READY, _AWAITING, _STOPPED}),
        _READY: frozenset({_IN_EPOCH, _AWAITING, _STOPPED}),
        _IN_EPOCH: frozenset({_READY, _PUBLISHING, _AWAITING, _STOPPED}),
        _PUBLISHING: frozenset({_READY, _AWAITING, _STOPPED}),
        _AWAITING: frozenset({_READY, _STOPPED}),
        _STOPPED: frozenset(),
    }

    def __init__(self, job: JobState, pending: PendingSnapshot) -> None:
        super().__init__(CycleState.RECOVERING)
        self._job, self._pending = job, pending
        self._published: tuple[RunEpoch, EpochAcked] | None = None
        """The epoch whose output is being published, and its acks."""
        self._is_first = True
        """True until an epoch of this execution begins."""
        self._began_ms = 0
        """Time of the tick that began the last epoch."""
        self._took_ms = 0
        """Duration of the last epoch."""
        self._writes_nothing = False
        """`Tick.writes_nothing` of the last tick."""

    # --- start of an epoch ----------------------------------------------------------------------

    def on_tick(self, event: Tick) -> list[Command]:
        if self.state is not CycleState.READY:
            return []
        self._writes_nothing = event.writes_nothing
        job, pending, ending = self._job, self._pending, self._job.ending
        stop = StopKind.CANCEL if ending.asked is StopKind.CANCEL else event.stop
        if stop is StopKind.CANCEL and pending.state.is_decided:
            ending.asked = stop
            # A decided snapshot is completed: nothing starts a cancelled job to do it.
            is_completing = pending.state is PendingState.COMPLETING
            return [] if is_completing else [ending.as_asked()]
        if pending.state is not PendingState.NONE and (
            # Two transactions per writer: a third must not open before phase 2 has ended.
            stop or job.decides_every_epoch or job.acked_epochs >= 1
        ):
            return []
        if stop is not None:
            return self._end(stop)
        due = self._snapshot_is_due(event)
        if due and not pending.has_ids:
            return pending.reserve_ids()
        job.releases = event.wants_snapshot
        if event.wants_epoch or (due and (job.acked_epochs > 0 or self._is_released(event))):
            self._began_ms = event.now_ms
            return self._run_epoch(snapshot=due, terminal=False, final=False)
        return []

    def _end(self, stop: StopKind) -> list[Command]:
        job, ending = self._job, self._job.ending
        ending.asked = stop
        if (
            stop is not StopKind.COMPLETE
            and job.epochs_since_barrier == 0
            and not job.open_since_ms
        ):
            return [ending.as_asked()]
        if not self._pending.has_ids:
            return [ending.without_snapshot("there are no snapshot ids")]
        return self._run_epoch(
            snapshot=job.config.guarantee is not Guarantee.NONE,
            terminal=True,
            final=stop is StopKind.COMPLETE,
        )

    def _snapshot_is_due(self, event: Tick) -> bool:
        job, pending = self._job, self._pending
        if job.config.guarantee is Guarantee.NONE or pending.state is not PendingState.NONE:
            return False
        if job.decides_every_epoch or event.wants_snapshot:
            return True
        since = event.now_ms - (pending.completed_ms or 0)
        if self._is_first:  # snapshots due during warm-up belong to this epoch
            since += job.config.first_epoch_ms
        elif event.wants_epoch and job.config.snapshot_interval_ms is None:
            # The snapshot begins at this epoch's end, by which time the period may have passed.
            since += self._took_ms
        return since >= pending.pause_ms(has_output=self._has_output)

    def _is_released(self, event: Tick) -> bool:
        """Whether a snapshot without new rows commits what earlier ones have held back."""
        at_ms = self._job.release_at_ms
        return at_ms is not None and (event.wants_snapshot or event.now_ms >= at_ms)

    @property
    def _has_output(self) -> bool:
        """Whether a snapshot makes rows visible, as far as known. Rows that may be held back do not
        count."""
        job = self._job
        is_open = any(one.sink not in job.config.holds for one in job.open_artifacts)
        return is_open or not self._writes_nothing

    def snapshot_due_at_ms(self) -> int | None:
        """Time of an idle job's next snapshot; None: nothing waits for a snapshot."""
        pause_ms = self._pending.pause_ms(has_output=self._has_output)
        due_ms = (self._pending.completed_ms or 0) + pause_ms
        if self._job.epochs_since_barrier > 0:
            return due_ms
        released_ms = self._job.release_at_ms
        return None if released_ms is None else max(due_ms, released_ms)

    def _run_epoch(self, *, snapshot: bool, terminal: bool, final: bool) -> list[Command]:
        job = self._job
        snapshot_id = self._pending.take_id() if snapshot else None
        self._is_first = False
        job.epoch_id += 1
        job.running = RunEpoch(job.record.execution_id, job.epoch_id, snapshot_id, terminal, final)
        self.become(CycleState.IN_EPOCH)
        return [job.running]

    # --- answers of an epoch --------------------------------------------------------------------

    def on_epoch_failed(self, event: EpochFailed) -> list[Command]:
        if not self._is_running(event.execution_id, event.epoch_id):
            return []
        return self.fail(Failed(event.reason, event.restartable))

    def _is_running(self, execution_id: int, epoch_id: int) -> bool:
        running = self._job.running
        return (
            self.state is CycleState.IN_EPOCH
            and running is not None
            and (running.execution_id, running.epoch_id) == (execution_id, epoch_id)
        )

    def on_epoch_acked(self, event: EpochAcked) -> list[Command]:
        job = self._job
        if not self._is_running(event.execution_id, event.epoch_id):
            return []
        running, job.running = job.running, None
        assert running is not None
        self._took_ms = max(0, event.now_ms - self._began_ms)
        acks = _distinct(event.acks)
        problem = self._incomplete(acks)
        if problem is not None:
            return self.fail(Failed(f"epoch {event.epoch_id}: {problem}", restartable=True))
        job.sources = dict(event.sources)
        job.watermarks = dict(event.watermarks)
        job.tables = event.tables
        job.unacknowledged = {name: dict(ids) for name, ids in event.unacknowledged.items()}
        job.apply_acks(acks)
        self._pending.apply_outcome()
        job.acked_epochs += 1
        in_order = sorted(acks, key=lambda ack: ack.shard)
        artifacts = [artifact for ack in in_order for artifact in ack.artifacts]
        for one in artifacts:
            if not job.publishes(one):
                job.open_artifacts.append(one)
                if one.sink in job.config.holds:
                    job.open_since_ms.setdefault(one.sink, event.now_ms)
        if published := tuple(filter(job.publishes, artifacts)):
            self._published = running, event
            self.become(CycleState.PUBLISHING)
            return [Publish(running.epoch_id, published)]
        return self._epoch_done(running, acks, event.now_ms)

    def on_published(self, event: Published) -> list[Command]:
        if self.state is not CycleState.PUBLISHING or self._published is None:
            return []
        running, acked = self._published
        if running.epoch_id != event.epoch_id:
            return []
        self._published = None
        job = self._job
        artifacts = (artifact for ack in acked.acks for artifact in ack.artifacts)
        job.newest_output |= newest_of(
            filter(job.publishes, artifacts), job.record.timeline, running.execution_id
        )
        return self._epoch_done(running, _distinct(acked.acks), acked.now_ms)

    def _epoch_done(self, running: RunEpoch, acks: tuple[Ack, ...], now_ms: int) -> list[Command]:
        snapshot_id = running.snapshot_id
        if snapshot_id is None:
            self.become(CycleState.READY)
            return [self._job.ending.as_asked()] if running.terminal else []
        self.become(CycleState.AWAITING_DECISION if running.terminal else CycleState.READY)
        completed = running.final
        return self._pending.begin(acks, now_ms, completed=completed, snapshot_id=snapshot_id)

    def _incomplete(self, acks: Iterable[Ack]) -> str | None:
        """Checks the acks: every shard of every stateful vertex, each exactly once."""
        seen: set[tuple[str, int]] = set()
        for ack in acks:
            key = (ack.vertex, ack.shard)
            if key in seen:
                return f"stage {ack.vertex!r}, shard {ack.shard} acked twice"
            seen.add(key)
        for vertex, count in self._job.config.shards.items():
            missing = [shard for shard in range(count) if (vertex, shard) not in seen]
            if missing:
                return f"stage {vertex!r}: no ack from shards {missing}"
        return None

    # --- failures -------------------------------------------------------------------------------

    def fail(self, failed: Failed) -> list[Command]:
        """Ends the execution, once no decision is on its way: another write of the record could
        take that back. What is decided is completed first, unless another execution follows, which
        does it, or just that has failed."""
        ending, pending = self._job.ending, self._pending.state
        first = ending.failed_meanwhile = ending.failed_meanwhile or failed
        completes = pending is PendingState.COMPLETING and not failed.completing
        if pending.is_decided and not (completes and ending.is_last(first)):
            return [ending.failed(first.reason, restartable=first.restartable)]
        if self.state is not CycleState.AWAITING_DECISION:
            self.become(CycleState.AWAITING_DECISION)
        return []

    def on_outcome(self) -> None:
        """Handles the decision of the pending snapshot."""
        if self.state is CycleState.AWAITING_DECISION:
            self.become(CycleState.READY)


def _distinct(acks: Iterable[Ack]) -> tuple[Ack, ...]:
    """Drops repeated deliveries of an ack. Acks of two attempts stay distinct."""
    unique: dict[tuple[str, int, str], Ack] = {}
    for ack in acks:
        unique.setdefault((ack.vertex, ack.shard, ack.attempt), ack)
    return tuple(unique.values())
