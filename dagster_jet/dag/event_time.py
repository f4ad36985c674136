"""From event times to watermarks, at a source with several partitions (vectors.md, section 2).

Pure: the wall clock is handed in with every call. Source: Hazelcast Jet `EventTimeMapper` and
`WatermarkPolicy` (``limitingLag``, ``limitingLagAndLull``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from dagster_jet.dag.items import IDLE, Signal, Watermark
from dagster_jet.dag.watermark import WatermarkHold, coalesced_minimum

DEFAULT_FRAME_MS = 1000


def watermark_frame_ms(slides_ms: Iterable[int]) -> int:
    """How coarse the watermarks of a job may be: no window closes between two of them.

    The greatest common divisor of all window slides; without windows, or above a second, one that
    divides a second as well, so that watermarks are not rarer than the eye expects.
    """
    frame = math.gcd(*slides_ms)
    if frame == 0:
        return DEFAULT_FRAME_MS
    return frame if frame <= DEFAULT_FRAME_MS else math.gcd(frame, DEFAULT_FRAME_MS)


@dataclass(frozen=True)
class EventTimePolicy:
    """How watermarks follow the events of one source.

    Raises:
        ValueError: a negative duration.
    """

    lag_ms: int = 0
    """How far events may be behind the newest one of their partition without being late."""
    frame_ms: int = DEFAULT_FRAME_MS
    """Emitted values are multiples of this; 0: no watermarks are emitted."""
    idle_timeout_ms: int = 0
    """A partition without events for so long does not hold the others back; 0: it always does."""
    max_lull_ms: int = 0
    """After so long without events a partition's watermark advances with the wall clock; 0: never.
    Events that come later with older times are late."""

    def __post_init__(self) -> None:
        for name in ("lag_ms", "frame_ms", "idle_timeout_ms", "max_lull_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")


@dataclass
class _Partition:
    since_ms: int
    """Wall clock of its last event, or of its appearance."""
    watermark: int | None = None
    at_last_event: int | None = None
    top_event: int | None = None
    idle: bool = False


class EventTimeMapper:
    """Watermarks of one source instance: per partition, then the least of those not idle.

    What a call returns is to be emitted at once: before the event, or behind the batch.

    Args:
        policy: lag, frame, timeouts.
        partitions: of the source, as far as they are known at the start.
        now_ms: the wall clock.

    Example:
        >>> mapper = EventTimeMapper(EventTimePolicy(lag_ms=3, frame_ms=1), ["p0"])
        >>> mapper.event("p0", 10)
        (Watermark(timestamp_ms=7),)
        >>> mapper.event("p0", 8)
        ()
    """

    def __init__(
        self, policy: EventTimePolicy, partitions: Iterable[Hashable] = (), *, now_ms: int = 0
    ) -> None:
        self._policy = policy
        self._partitions = {name: _Partition(now_ms) for name in partitions}
        self._top: int | None = None
        self._last_emitted: int | None = None
        self._all_idle_sent = False

    # --- partitions -----------------------------------------------------------------------------

    def add_partition(self, partition: Hashable, *, now_ms: int = 0) -> None:
        """A partition appeared: it holds the watermark back until its first event, or idleness."""
        if partition in self._partitions:
            raise ValueError(f"partition {partition!r} is there already")
        self._partitions[partition] = _Partition(now_ms)
        self._all_idle_sent = False

    def remove_partition(
        self, partition: Hashable, *, now_ms: int = 0
    ) -> tuple[Watermark | Signal, ...]:
        """A partition is gone: it no longer holds anything back."""
        del self._partitions[partition]
        return self._emit(now_ms)

    # --- events ---------------------------------------------------------------------------------

    def event(
        self, partition: Hashable, event_time_ms: int, *, now_ms: int = 0
    ) -> tuple[Watermark | Signal, ...]:
        """An event is about to be emitted, whether a filter drops it afterwards or not.

        Returns:
            What precedes it. An event never makes itself late.
        """
        state = self._observe(partition, event_time_ms, now_ms)
        assert state.top_event is not None
        candidate = min(state.top_event - self._policy.lag_ms, event_time_ms)
        return self._advance(state, candidate, now_ms)

    def batch(
        self, partition: Hashable, top_event_ms: int, *, now_ms: int = 0
    ) -> tuple[Watermark | Signal, ...]:
        """A batch with this highest event time was emitted. Returns what follows it."""
        state = self._observe(partition, top_event_ms, now_ms)
        assert state.top_event is not None
        return self._advance(state, state.top_event - self._policy.lag_ms, now_ms)

    def poll(self, *, now_ms: int = 0) -> tuple[Watermark | Signal, ...]:
        """No event came. Returns what time alone brings."""
        return self._emit(now_ms)

    # --- snapshots ------------------------------------------------------------------------------

    def save(self) -> dict[Hashable, int | None]:
        """The watermark of each partition, also of idle ones: each goes on from its own."""
        return {name: state.watermark for name, state in self._partitions.items()}

    def restore(self, partition: Hashable, watermark: int | None, *, now_ms: int = 0) -> None:
        """Takes back what `save` gave for one partition.

        Nothing up to the least of all is emitted again. One that was idle counts until it is idle
        once more, so the first watermarks may be less than the last ones before the restart:
        partitions move between instances, and none of them knows what the others had emitted.
        """
        state = self._partitions.setdefault(partition, _Partition(now_ms))
        state.watermark = state.at_last_event = watermark
        marks = [s.watermark for s in self._partitions.values()]
        known = [mark for mark in marks if mark is not None]
        self._top = max(known, default=None)
        self._last_emitted = min(known) if known and len(known) == len(marks) else None

    # --- questions ------------------------------------------------------------------------------

    def held_back_by(self, now_ms: int) -> tuple[WatermarkHold, ...]:
        """The partitions that hold the watermark back; empty if all are equally far."""
        self._check_idle(now_ms)
        active = [(n, s) for n, s in self._partitions.items() if not s.idle]
        holding = [(n, s) for n, s in active if s.watermark is None]
        if not holding and active:
            least = min(s.watermark for _, s in active if s.watermark is not None)
            top = least if self._top is None else self._top
            holding = [(n, s) for n, s in active if s.watermark == least and least < top]
        return tuple(
            WatermarkHold(n, s.watermark, s.since_ms, now_ms - s.since_ms) for n, s in holding
        )

    # --- inside ---------------------------------------------------------------------------------

    def _observe(self, partition: Hashable, event_time_ms: int, now_ms: int) -> _Partition:
        state = self._partitions[partition]
        state.since_ms, state.idle = now_ms, False
        top = state.top_event
        state.top_event = event_time_ms if top is None else max(top, event_time_ms)
        self._all_idle_sent = False
        return state

    def _advance(
        self, state: _Partition, candidate: int, now_ms: int
    ) -> tuple[Watermark | Signal, ...]:
        mark = state.watermark
        state.watermark = candidate if mark is None else max(mark, candidate)
        state.at_last_event = state.watermark
        return self._emit(now_ms)

    def _check_idle(self, now_ms: int) -> None:
        timeout, lull = self._policy.idle_timeout_ms, self._policy.max_lull_ms
        for state in self._partitions.values():
            state.idle = timeout > 0 and now_ms >= state.since_ms + timeout
            quiet_ms = now_ms - state.since_ms - lull
            if lull > 0 and quiet_ms > 0 and not state.idle and state.at_last_event is not None:
                assert state.watermark is not None
                state.watermark = max(state.watermark, state.at_last_event + quiet_ms)

    def _emit(self, now_ms: int) -> tuple[Watermark | Signal, ...]:
        self._check_idle(now_ms)
        states = self._partitions.values()
        least, all_idle = coalesced_minimum((s.watermark, s.idle) for s in states)
        known = [s.watermark for s in states if s.watermark is not None]
        if self._top is not None:
            known.append(self._top)
        self._top = max(known, default=None)
        found: list[Watermark | Signal] = []
        if all_idle:
            if self._all_idle_sent:
                return ()
            least, self._all_idle_sent = self._top, True
        frame = self._policy.frame_ms
        if least is not None and frame > 0:
            floored = least // frame * frame
            if self._last_emitted is None or floored > self._last_emitted:
                self._last_emitted = floored
                found.append(Watermark(floored))
        if all_idle:
            found.append(IDLE)
        return tuple(found)
