"""Decides without I/O what an execution runs next, when it stops, and how long it waits.

The input are immutable views of the sources, the coordinator and the stop requests. The loop calls
it, and so does the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.execution.stopping import Until
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.protocol import RunEpoch, StopKind, Tick

TIMER_PERIOD_MS = 1_000
"""Milliseconds between two epochs without input if a user's processor has timers (`try_process`),
or a timer in processing time is due.
"""

FIRST_POLL_MS = 10
"""Milliseconds to the next poll right after an epoch; the interval grows with the idle time."""


@dataclass(frozen=True)
class PollRequest:
    """How the sources are to be polled."""

    polls: bool
    """False: the input has ended, and only the rest of a backlog is read."""
    waits_for_all: bool
    """Whether to wait until every source has answered a poll that starts now."""


@dataclass(frozen=True)
class StageTime:
    """Event time of a stateful stage."""

    reached_ms: int | None
    """Watermark of the stage's last epoch."""
    watermark_ms: int | None
    """Watermark known now, rounded to a boundary of the stage's windows."""
    expected_ms: int | None = None
    """See `WatermarkTracker.expected_ms`."""


def next_watermark(time: StageTime, *, final: bool) -> int | None:
    """Returns the watermark for a stage's next epoch; never below the one that it has reached."""
    if final:
        return FINAL_WATERMARK_MS
    known = [one for one in (time.reached_ms, time.watermark_ms) if one is not None]
    return max(known, default=None)


@dataclass(frozen=True)
class Inputs:
    """Result of a poll of the sources between two epochs."""

    request: PollRequest
    now_ms: int
    waiting: frozenset[str] = frozenset()
    """Sources with waiting input."""
    stages: Mapping[str, StageTime] = field(default_factory=dict)
    early_due: bool = False
    """Whether a stage has to emit early results."""
    last_epoch_ms: int = 0
    """End of the last epoch."""
    always_rings: bool = False
    """Whether processors have timers (`try_process`), which only they know."""
    clocks_ms: Mapping[str, int] = field(default_factory=dict)
    """Clock of the next epoch, for stages with timers in processing time."""
    backlog: frozenset[str] = frozenset()
    """Once the input has ended: sources with unread input."""
    is_held: bool = False
    """Whether one of these sources delivers more only after a snapshot has acknowledged its
    messages."""


def timer_is_due(clocks_ms: Mapping[str, int], view: CoordinatorView) -> bool:
    """Returns whether state says that a timer in processing time may be due. The timer may have
    been moved since: an epoch then finds none."""
    return any(
        run.earliest_ms is not None and run.earliest_ms < clock_ms
        for stage, clock_ms in clocks_ms.items()
        for shard in view.shards.get(stage, ())
        for run in shard.runs
    )


@dataclass(frozen=True)
class EpochPlanner:
    """Plans the epochs of one execution."""

    until: Until
    poll_interval_ms: int
    """Longest time between two polls."""
    started_ms: int | None = None
    """When the first epoch could begin, by wall clock; None: it could not yet."""
    output_stages: frozenset[str] = frozenset()
    """See `Graph.output_stages`."""

    def poll_request(self, asked: StopKind | None, *, input_ended: bool) -> PollRequest:
        """Returns how to poll the sources. A job that shall complete reads the input available
        by then."""
        return PollRequest(polls=not input_ended, waits_for_all=asked is StopKind.COMPLETE)

    def tick(
        self,
        inputs: Inputs,
        asked: StopKind | None,
        view: CoordinatorView,
        *,
        wants_snapshot: bool = False,
    ) -> Tick:
        """Returns the next Tick: whether to run an epoch, force a snapshot, or stop."""
        moving = self._moving(inputs)
        closes = not inputs.waiting and bool(moving)
        is_due = timer_is_due(inputs.clocks_ms, view)
        rings = (is_due or inputs.always_rings) and (
            inputs.now_ms >= inputs.last_epoch_ms + TIMER_PERIOD_MS
        )
        return Tick(
            inputs.now_ms,
            wants_epoch=bool(inputs.waiting) or closes or inputs.early_due or rings,
            stop=self._stop(inputs, asked, view, closes=closes or is_due),
            wants_snapshot=wants_snapshot or (inputs.is_held and not inputs.waiting),
            writes_nothing=bool(self.output_stages)
            and self.output_stages.isdisjoint(moving | self._expected_to_move(inputs))
            and not (inputs.early_due or rings),
        )

    def _stop(
        self, inputs: Inputs, asked: StopKind | None, view: CoordinatorView, *, closes: bool
    ) -> StopKind | None:
        unread = inputs.waiting | inputs.backlog
        if asked is StopKind.COMPLETE and (unread or not inputs.request.waits_for_all):
            asked = None  # first read all input available at the request
        if asked is not None:
            return asked
        if self.until.input_ends and not unread:
            # The terminal epoch closes what is due; but where the last snapshot has everything
            # there would be none, and what is out would depend on when that snapshot was taken.
            saves = view.epochs_since_barrier > 0
            if saves or not closes or self.until.stop is StopKind.COMPLETE:
                return self.until.stop
        if self.until.duration_s is not None and self.started_ms is not None:
            if inputs.now_ms - self.started_ms >= self.until.duration_s * 1000:
                return StopKind.SHUTDOWN
        return None

    def _moving(self, inputs: Inputs) -> frozenset[str]:
        """Returns the stages that have windows to close without new input."""
        after_ms = self.watermarks(inputs.stages, final=False)
        return frozenset(n for n, t in inputs.stages.items() if after_ms[n] != t.reached_ms)

    def _expected_to_move(self, inputs: Inputs) -> frozenset[str]:
        """Returns the stages that will probably close windows by the rows of the next epoch."""
        if not inputs.waiting:
            return frozenset()
        return frozenset(
            name
            for name, time in inputs.stages.items()
            if time.expected_ms is not None
            and (time.reached_ms is None or time.expected_ms > time.reached_ms)
        )

    def watermarks(self, stages: Mapping[str, StageTime], *, final: bool) -> dict[str, int | None]:
        """Returns the watermark of each stage for the next epoch, as known before the epoch's own
        rows."""
        return {name: next_watermark(time, final=final) for name, time in stages.items()}

    def takes_input(self, epoch: RunEpoch) -> bool:
        """Returns whether the epoch reads input: a terminal epoch does not, the final one reads the
        rest."""
        return not epoch.terminal or epoch.final

    def wait_ms(self, view: CoordinatorView, now_ms: int, *, idle_ms: int) -> int:
        """Returns the ms until the next poll after a poll that led to nothing.

        A job that had input a moment ago polls soon, a job that is idle polls rarely.

        Args:
            idle_ms: ms since the loop has last started something.
        """
        if view.is_pending:
            return self.poll_interval_ms  # its end wakes the loop
        wait_ms = min(self.poll_interval_ms, max(FIRST_POLL_MS, idle_ms // 4))
        due_ms = view.snapshot_due_at_ms
        return wait_ms if due_ms is None else min(wait_ms, max(1, due_ms - now_ms))
