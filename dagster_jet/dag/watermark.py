"""Coalesces watermarks; event time of a source partition (vectors.md, sections 1 and 2).

Pure: time is an argument. Sources: Hazelcast Jet `WatermarkCoalescer` and `EventTimeMapper`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from dagster_jet.dag.items import IDLE, Signal

_LULL_STEP_MS = 1000

FINAL_WATERMARK_MS = 9_000_000_000_000_000
"""After every event: the end of a stream's time; adding to it does not overflow int64."""

Emission = int | Signal | None
"""A watermark to emit, `IDLE`, or nothing."""


class WatermarkError(ValueError):
    """An input broke the rules: its watermark did not grow, or it continued after being done."""


@dataclass
class _Input:
    watermark: int | None = None
    idle: bool = False
    done: bool = False
    since_ms: int = 0


@dataclass(frozen=True)
class WatermarkHold:
    """An input that keeps the coalesced watermark from advancing."""

    input: Hashable
    """Ordinal of the input; for a source, the name of the partition."""
    watermark: int | None
    """Last watermark of the input; None: it never had one."""
    since_ms: int
    """Wall-clock time of that watermark, or of the input's return from idleness."""
    for_ms: int


class RetainedTops:
    """The highest watermarks of several inputs, kept until they may overtake lagging inputs.

    Args:
        retention_ms: wall-clock time after which they may.
    """

    def __init__(self, retention_ms: int) -> None:
        if retention_ms < 0:
            raise ValueError(f"max_retention_ms is {retention_ms}; expected 0 or more, or None")
        self._retention_ms = retention_ms
        self._seen: deque[tuple[int, int]] = deque()
        """(when, highest watermark), not due yet, oldest first."""

    def observe(self, watermark: int, now_ms: int) -> None:
        if not self._seen or watermark > self._seen[-1][1]:
            self._seen.append((now_ms, watermark))

    def due(self, now_ms: int) -> int | None:
        """Return the highest watermark that is old enough, only once; else None."""
        found: int | None = None
        while self._seen and now_ms >= self._seen[0][0] + self._retention_ms:
            _, found = self._seen.popleft()
        return found

    def forget(self, watermark: int) -> None:
        """Drop watermarks that the minimum has reached."""
        while self._seen and self._seen[0][1] <= watermark:
            self._seen.popleft()


class WatermarkCoalescer:
    """Coalesces inputs into one output: the minimum over inputs neither idle nor done.

    Args:
        input_count: queues of an edge, or edges of a processor.
        max_retention_ms: the highest watermark is forwarded at this age, even if an input lags;
            events of a lagging input are then late. None: never. Needs more than one input.
        now_ms: wall clock at the start; updated by `check` and `observe_*`.
    """

    def __init__(
        self, input_count: int, *, max_retention_ms: int | None = None, now_ms: int = 0
    ) -> None:
        tops = None if max_retention_ms is None else RetainedTops(max_retention_ms)
        self._tops = tops if input_count > 1 else None
        self._inputs = [_Input(since_ms=now_ms) for _ in range(input_count)]
        self._last_emitted: int | None = None
        self._all_idle_sent = False
        self._idle_due = False
        self._now_ms = now_ms

    @property
    def last_emitted(self) -> int | None:
        return self._last_emitted

    def restore(self, last_emitted: int | None) -> None:
        """After a restart: watermarks up to `last_emitted` are not emitted again."""
        self._last_emitted = last_emitted

    def observe_watermark(self, input: int, value: int, *, now_ms: int | None = None) -> Emission:
        self._at(now_ms)
        state = self._live(input, f"watermark {value}")
        if state.watermark is not None and value <= state.watermark:
            raise WatermarkError(
                f"input {input}: watermark {value} is not greater than {state.watermark}"
            )
        state.watermark, state.idle, state.since_ms = value, False, self._now_ms
        self._all_idle_sent = self._idle_due = False
        if len(self._inputs) == 1:
            self._last_emitted = value
            return value
        if self._tops is not None:
            self._tops.observe(value, self._now_ms)
        return self._coalesce()

    def observe_event(self, input: int, *, now_ms: int | None = None) -> None:
        """Make an idle input active again, with its old watermark."""
        self._at(now_ms)
        state = self._inputs[input]
        if state.idle:
            state.idle, state.since_ms = False, self._now_ms
        self._all_idle_sent = self._idle_due = False

    def observe_idle(self, input: int, *, now_ms: int | None = None) -> Emission:
        self._at(now_ms)
        state = self._live(input, "idle")
        if len(self._inputs) == 1:
            state.idle = True
            return IDLE
        if state.idle:
            return None
        state.idle = True
        return self._coalesce()

    def observe_done(self, input: int, *, now_ms: int | None = None) -> Emission:
        self._at(now_ms)
        self._live(input, "done").done = True
        if len(self._inputs) == 1:
            return None
        return self._coalesce()

    def check(self, now_ms: int = 0) -> Emission:
        """Return the emission due to elapsed time: the IDLE that follows the last watermark of idle
        inputs, or the highest watermark once it was retained for long enough."""
        self._at(now_ms)
        if self._idle_due:
            return self._send_idle()
        due = None if self._tops is None else self._tops.due(self._now_ms)
        return None if due is None else self._emit(due)

    def held_back_by(self, now_ms: int | None = None) -> tuple[WatermarkHold, ...]:
        """Return the active inputs that hold the watermark back; empty if all are equally far."""
        self._at(now_ms)
        active = [(n, s) for n, s in enumerate(self._inputs) if not s.idle and not s.done]
        seen = [s.watermark for s in self._inputs if s.watermark is not None]
        waiting = [(n, s) for n, s in active if s.watermark is None]
        if not waiting and active:
            least = min(s.watermark for _, s in active if s.watermark is not None)
            waiting = [(n, s) for n, s in active if s.watermark == least and least < max(seen)]
        return tuple(
            WatermarkHold(n, s.watermark, s.since_ms, self._now_ms - s.since_ms) for n, s in waiting
        )

    def _at(self, now_ms: int | None) -> None:
        if now_ms is not None:
            self._now_ms = max(self._now_ms, now_ms)

    def _live(self, input: int, what: str) -> _Input:
        state = self._inputs[input]
        if state.done:
            raise WatermarkError(f"input {input}: {what} after it was done")
        return state

    def _coalesce(self) -> Emission:
        least, all_idle = coalesced_minimum([(s.watermark, s.idle or s.done) for s in self._inputs])
        if not all_idle:
            return None if least is None else self._emit(least)
        if all(s.done for s in self._inputs):
            self._idle_due = False
            return None
        emitted = None if least is None else self._emit(least)
        if emitted is not None:
            self._idle_due = True
            return emitted
        return None if self._all_idle_sent else self._send_idle()

    def _send_idle(self) -> Signal:
        self._idle_due, self._all_idle_sent = False, True
        return IDLE

    def _emit(self, value: int) -> int | None:
        if self._last_emitted is not None and value <= self._last_emitted:
            return None
        self._last_emitted = value
        if self._tops is not None:
            self._tops.forget(value)
        return value


def coalesced_minimum(inputs: Iterable[tuple[int | None, bool]]) -> tuple[int | None, bool]:
    """Return the least watermark of the active inputs; if none is active, the highest.

    Args:
        inputs: (last watermark, whether it is idle or done and so excluded from the minimum). An
            active input without a watermark blocks.

    Returns:
        (watermark or None, whether no input is active).
    """
    inputs = list(inputs)
    active = [watermark for watermark, out in inputs if not out]
    if active:
        known = [watermark for watermark in active if watermark is not None]
        return (min(known) if len(known) == len(active) else None), False
    return max((w for w, _ in inputs if w is not None), default=None), True


@dataclass(frozen=True)
class EventTimeState:
    """Event-time state of one source partition; part of every snapshot.

    An idle partition keeps its last watermark, so that its return never decreases the watermark.
    """

    watermark_ms: int | None = None
    top_event_ms: int | None = None
    last_event_at_ms: int | None = None
    """Wall-clock time of the last event, used only for idleness."""
    idle: bool = False
    advanced_at_ms: int | None = None
    """Wall-clock time at which the watermark last moved, for watermark holds."""

    def observe(self, top_event_ms: int | None, lag_ms: int, now_ms: int) -> EventTimeState:
        """Observe a batch with this highest event time (None: events without time)."""
        if top_event_ms is None:
            return replace(self, last_event_at_ms=now_ms, idle=False)
        candidate = top_event_ms - lag_ms
        watermark = candidate if self.watermark_ms is None else max(self.watermark_ms, candidate)
        top = top_event_ms if self.top_event_ms is None else max(self.top_event_ms, top_event_ms)
        advanced_at_ms = now_ms if watermark != self.watermark_ms else self.advanced_at_ms
        return EventTimeState(watermark, top, now_ms, False, advanced_at_ms)

    def check_idle(self, idle_timeout_ms: int, now_ms: int) -> EventTimeState:
        """Mark as idle after `idle_timeout_ms` without events; 0 means never."""
        if idle_timeout_ms <= 0 or self.idle:
            return self
        since = self.last_event_at_ms
        if since is None:
            return replace(self, last_event_at_ms=now_ms)
        if now_ms >= since + idle_timeout_ms:
            return replace(self, idle=True)
        return self

    def check_lull(self, max_lull_ms: int, now_ms: int) -> EventTimeState:
        """Advance with the wall clock after `max_lull_ms` without events; 0 means never.

        In steps of a second: each may close something, which costs an epoch.
        """
        if max_lull_ms <= 0 or self.idle or self.watermark_ms is None:
            return self
        if self.last_event_at_ms is None:
            return replace(self, last_event_at_ms=now_ms)
        since = max(self.last_event_at_ms + max_lull_ms, self.advanced_at_ms or 0)
        passed = (now_ms - since) // _LULL_STEP_MS * _LULL_STEP_MS
        if passed <= 0:
            return self
        return replace(self, watermark_ms=self.watermark_ms + passed, advanced_at_ms=since + passed)
