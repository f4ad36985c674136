"""What an execution runs next, when it stops, and how long it waits: decided without I/O.

From frozen pictures only: of the inputs, of the coordinator, of what was asked for. The loop asks,
and the simulator with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.execution.stopping import Until
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.protocol import RunEpoch, StopKind, Tick

TIMER_PERIOD_MS = 1_000
"""In a lull, from one epoch to the next where a user's processor has timers (`try_process`)."""


@dataclass(frozen=True)
class Look:
    """How the sources are to be looked at."""

    polls: bool
    """False: the input has ended, nothing new is taken but what is left of a backlog."""
    waits_for_all: bool
    """Until every source has answered a poll that begins now."""


@dataclass(frozen=True)
class StageTime:
    """Event time of a stateful stage."""

    reached_ms: int | None
    """The watermark under which its last epoch ended."""
    watermark_ms: int | None
    """The one that is known now, on a boundary of its windows."""


def next_watermark(time: StageTime, *, final: bool) -> int | None:
    """The watermark for a stage's next epoch; never less than the one that it has reached."""
    if final:
        return FINAL_WATERMARK_MS
    known = [one for one in (time.reached_ms, time.watermark_ms) if one is not None]
    return max(known, default=None)


@dataclass(frozen=True)
class Inputs:
    """What was found when the inputs were looked at, between two epochs."""

    look: Look
    now_ms: int
    waiting: frozenset[str] = frozenset()
    """Sources in which something waits."""
    stages: Mapping[str, StageTime] = field(default_factory=dict)
    early_due: bool = False
    """Some stage is to show early results."""
    timers_since_ms: int | None = None
    """The end of the last epoch, where processors have timers; else None."""
    backlog: frozenset[str] = frozenset()
    """Where the input has ended: sources that have not read all that was there then."""
    is_held: bool = False
    """One of these brings no more before a snapshot has acknowledged what was read."""


@dataclass(frozen=True)
class EpochPlanner:
    """Of one execution."""

    until: Until
    poll_interval_ms: int
    started_ms: int

    def look(self, asked: StopKind | None, *, input_ended: bool) -> Look:
        """How to look at the sources. A job that is to complete takes what is there by then."""
        return Look(polls=not input_ended, waits_for_all=asked is StopKind.COMPLETE)

    def tick(
        self,
        inputs: Inputs,
        asked: StopKind | None,
        view: CoordinatorView,
        *,
        wants_snapshot: bool = False,
    ) -> Tick:
        """What the coordinator is told: is there a reason for an epoch, for a snapshot before its
        time, and for the end?"""
        closes = not inputs.waiting and self._closes(inputs)
        rings = inputs.timers_since_ms is not None and (
            inputs.now_ms >= inputs.timers_since_ms + TIMER_PERIOD_MS
        )
        return Tick(
            inputs.now_ms,
            wants_epoch=bool(inputs.waiting) or closes or inputs.early_due or rings,
            stop=self._stop(inputs, asked, view, closes=closes),
            wants_snapshot=wants_snapshot or (inputs.is_held and not inputs.waiting),
        )

    def _stop(
        self, inputs: Inputs, asked: StopKind | None, view: CoordinatorView, *, closes: bool
    ) -> StopKind | None:
        unread = inputs.waiting | inputs.backlog
        if asked is StopKind.COMPLETE and (unread or not inputs.look.waits_for_all):
            asked = None  # first everything that was there when it was asked for
        if asked is not None:
            return asked
        if self.until.input_ends and not unread:
            # The terminal epoch closes what is due; but where the last snapshot has everything
            # there would be none, and what is out would depend on when that snapshot was taken.
            saves = view.epochs_since_barrier > 0
            if saves or not closes or self.until.stop is StopKind.COMPLETE:
                return self.until.stop
        if self.until.duration_s is not None:
            if inputs.now_ms - self.started_ms >= self.until.duration_s * 1000:
                return StopKind.SHUTDOWN
        return None

    def _closes(self, inputs: Inputs) -> bool:
        """Some stage has something to close although no input has arrived."""
        after_ms = self.watermarks(inputs.stages, final=False)
        return any(after_ms[name] != time.reached_ms for name, time in inputs.stages.items())

    def watermarks(self, stages: Mapping[str, StageTime], *, final: bool) -> dict[str, int | None]:
        """The watermark under which each stage runs next: what was known before the epoch's own
        rows."""
        return {name: next_watermark(time, final=final) for name, time in stages.items()}

    def takes_input(self, epoch: RunEpoch) -> bool:
        """A terminal epoch takes no new input; the final one what is left of it."""
        return not epoch.terminal or epoch.final

    def wait_ms(self, view: CoordinatorView, now_ms: int) -> int:
        """How long until the next look, where the last one led to nothing."""
        due_ms = view.snapshot_due_at_ms
        if view.is_pending or due_ms is None:
            return self.poll_interval_ms
        return min(self.poll_interval_ms, max(1, due_ms - now_ms))
