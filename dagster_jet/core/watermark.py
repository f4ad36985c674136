"""Watermarks: from event times to one value per stage (vectors.md, sections 1 and 2).

Pure: time is handed in. Sources: Hazelcast Jet `WatermarkCoalescer` and `EventTimeMapper`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

IDLE: Final = "IDLE"
"""Takes an input out of the minimum until it shows an event or a watermark again."""

Emission = int | str | None
"""A watermark to emit, `IDLE`, or nothing."""


class WatermarkError(ValueError):
    """An input broke the rules: its watermark did not grow, or it spoke after being done."""


@dataclass
class _Input:
    watermark: int | None = None
    idle: bool = False
    done: bool = False


class WatermarkCoalescer:
    """Several inputs, one output: the minimum over inputs that are neither idle nor done."""

    def __init__(self, input_count: int) -> None:
        self._inputs = [_Input() for _ in range(input_count)]
        self._last_emitted: int | None = None
        self._all_idle_told = False
        self._idle_due = False

    @property
    def last_emitted(self) -> int | None:
        return self._last_emitted

    def restore(self, last_emitted: int | None) -> None:
        """After a restart: nothing at or below `last_emitted` is emitted again."""
        self._last_emitted = last_emitted

    def observe_watermark(self, input: int, value: int) -> Emission:
        state = self._live(input, f"watermark {value}")
        if state.watermark is not None and value <= state.watermark:
            raise WatermarkError(
                f"input {input}: watermark {value} is not greater than {state.watermark}"
            )
        state.watermark, state.idle = value, False
        self._all_idle_told = self._idle_due = False
        if len(self._inputs) == 1:
            self._last_emitted = value
            return value
        return self._coalesce()

    def observe_event(self, input: int) -> None:
        """An idle input is active again, with its old watermark."""
        self._inputs[input].idle = False
        self._all_idle_told = self._idle_due = False

    def observe_idle(self, input: int) -> Emission:
        state = self._live(input, "idle")
        if len(self._inputs) == 1:
            return IDLE
        if state.idle:
            return None
        state.idle = True
        return self._coalesce()

    def observe_done(self, input: int) -> Emission:
        self._live(input, "done").done = True
        if len(self._inputs) == 1:
            return None
        return self._coalesce()

    def check(self, now_ms: int = 0) -> Emission:
        """A chance to emit the IDLE that follows the last watermark of idle inputs."""
        if self._idle_due:
            self._idle_due, self._all_idle_told = False, True
            return IDLE
        return None

    def _live(self, input: int, what: str) -> _Input:
        state = self._inputs[input]
        if state.done:
            raise WatermarkError(f"input {input}: {what} after it was done")
        return state

    def _coalesce(self) -> Emission:
        active = [s for s in self._inputs if not s.idle and not s.done]
        if active:
            values = [s.watermark for s in active]
            known = [v for v in values if v is not None]
            if len(known) < len(values):
                return None
            return self._emit(min(known))
        if all(s.done for s in self._inputs):
            return None
        tops = [s.watermark for s in self._inputs if s.watermark is not None]
        emitted = self._emit(max(tops)) if tops else None
        if emitted is not None:
            self._idle_due = True
            return emitted
        if self._all_idle_told:
            return None
        self._all_idle_told = True
        return IDLE

    def _emit(self, value: int) -> int | None:
        if self._last_emitted is not None and value <= self._last_emitted:
            return None
        self._last_emitted = value
        return value


@dataclass(frozen=True)
class EventTimeState:
    """What one source partition knows about its event time; part of every snapshot.

    An idle partition keeps its last watermark, so that its return never moves anything back.
    """

    watermark_ms: int | None = None
    top_event_ms: int | None = None
    last_event_at_ms: int | None = None
    """Wall-clock time of the last event, for idleness only."""
    idle: bool = False

    def observe(self, top_event_ms: int | None, lag_ms: int, now_ms: int) -> EventTimeState:
        """A batch of events with this highest event time arrived (None: events without time)."""
        if top_event_ms is None:
            return EventTimeState(self.watermark_ms, self.top_event_ms, now_ms, False)
        candidate = top_event_ms - lag_ms
        watermark = candidate if self.watermark_ms is None else max(self.watermark_ms, candidate)
        top = top_event_ms if self.top_event_ms is None else max(self.top_event_ms, top_event_ms)
        return EventTimeState(watermark, top, now_ms, False)

    def check_idle(self, idle_timeout_ms: int, now_ms: int) -> EventTimeState:
        """Idle when nothing came for `idle_timeout_ms`; 0 means never."""
        if idle_timeout_ms <= 0 or self.idle:
            return self
        since = self.last_event_at_ms
        if since is None:
            return EventTimeState(self.watermark_ms, self.top_event_ms, now_ms, False)
        if now_ms >= since + idle_timeout_ms:
            return EventTimeState(self.watermark_ms, self.top_event_ms, since, True)
        return self
