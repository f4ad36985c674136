"""Computes watermarks from event times, at a source with partitions (vectors.md, section 2).

Pure: the wall clock is an argument. Source: Hazelcast Jet `EventTimeMapper` and `WatermarkPolicy`
(``limitingLag``, ``limitingLagAndLull``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from dagster_jet.dag.items import IDLE, Signal, Watermark
from dagster_jet.dag.watermark import WatermarkHold, coalesced_minimum

DEFAULT_FRAME_MS = 1000


def watermark_frame_ms(slides_ms: Iterable[int]) -> int:
    """Return the granularity of a job's watermarks: no window closes between two of them.

    It is the greatest common divisor of all window slides. Without windows, or above a second,
    it also divides a second, so that watermarks come at least once a second.
    """
    frame = math.gcd(*slides_ms)
    if frame == 0:
        return DEFAULT_FRAME_MS
    return frame if frame <= DEFAULT_FRAME_MS else math.gcd(frame, DEFAULT_FRAME_MS)


@dataclass(frozen=True)
class EventTimePolicy:
    """Rules for the watermarks of one source.

    Raises:
        ValueError: a negative duration.
    """

    lag_ms: int = 0
    """Events of a partition may be this far behind its newest one without being late."""
    frame_ms: int = DEFAULT_FRAME_MS
    """Emitted watermarks are multiples of this; 0: no watermarks are emitted."""
    idle_timeout_ms: int = 0
    """A partition without events for this time no longer holds others back; 0: always does."""
    max_lull_ms: int = 0
    """After this time without events a partition's watermark advances with the wall clock; 0:
    never. Later events with older times are late."""

    def __post_init__(self) -> None:
        for name in ("lag_ms", "frame_ms", "idle_timeout_ms", "max_lull_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")


@dataclass
class _Partition:
    since_ms: int
    """Wall-clock time of its last event, or of its creation."""
    watermark: int | None = None
    at_last_event: int | None = None
    top_event: int | None = None
    idle: bool = False


class EventTimeMapper:
    """Watermarks of one source instance: the minimum over its partitions that are not idle.

    Emit a call's result at once: before the event, or after the batch.

    Args:
        policy: lag, frame, timeouts.
        partitions: the partitions known at the start.
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
        """Add a partition: it holds the watermark back until its first event or idleness."""
        if partition in self._partitions:
            raise ValueError(f"partition {partition!r} is there already")
        self._partitions[partition] = _Partition(now_ms)
        self._all_idle_sent = False

    def remove_partition(
        self, partition: Hashable, *, now_ms: int = 0
    ) -> tuple[Watermark | Signal, ...]:
        """Remove a partition: it no longer holds the watermark back."""
        del self._partitions[partition]
        return self._emit(now_ms)

    # --- events ---------------------------------------------------------------------------------

    def event(
        self, partition: Hashable, event_time_ms: int, *, now_ms: int = 0
    ) -> tuple[Watermark | Signal, ...]:
        """Observe an event before it is emitted, whether a filter drops it afterwards or not.

        Returns:
            Items to emit before it. An event never makes itself late.
        """
        state = self._observe(partition, event_time_ms, now_ms)
        assert state.top_event is not None
        candidate = min(state.top_event - self._policy.lag_ms, event_time_ms)
        return self._advance(state, candidate, now_ms)

    def batch(
        self, partition: Hashable, top_event_ms: int, *, now_ms: int = 0
    ) -> tuple[Watermark | Signal, ...]:
        """Observe an emitted batch with this highest event time; return items to emit after it."""
        state = self._observe(partition, top_event_ms, now_ms)
        assert state.top_event is not None
        return self._advance(state, state.top_event - self._policy.lag_ms, now_ms)

    def poll(self, *, now_ms: int = 0) -> tuple[Watermark | Signal, ...]:
        """Return the items to emit because of elapsed time only, without an event."""
        return self._emit(now_ms)

    # --- snapshots ------------------------------------------------------------------------------

    def save(self) -> dict[Hashable, int | None]:
        """Return the watermark of each partition, including idle ones, for the restore."""
        return {name: state.watermark for name, state in self._partitions.items()}

    def restore(self, partition: Hashable, watermark: int | None, *, now_ms: int = 0) -> None:
        """Restore the saved watermark of one partition.

        Watermarks up to the minimum of all partitions are not emitted again. An idle partition
        counts until it is idle again, so the first watermarks may be lower than the last ones
        before the restart: partitions move between instances, which share no emitted watermark.
        """
        state = self._partitions.setdefault(partition, _Partition(now_ms))
        state.watermark = state.at_last_event = watermark
        marks = [s.watermark for s in self._partitions.values()]
        known = [mark for mark in marks if mark is not None]
        self._top = max(known, default=None)
        self._last_emitted = min(known) if known and len(known) == len(marks) else None

    # --- watermark holds ------------------------------------------------------------------------

    def held_back_by(self, now_ms: int) -> tuple[WatermarkHold, ...]:
        """Return the partitions that hold the watermark back; empty if all are equally far."""
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

    # --- private --------------------------------------------------------------------------------

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
