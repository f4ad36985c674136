"""Reads queues into edges and edges into one processor; aligns barriers, coalesces watermarks.

The same rules apply twice: first between the queues of one edge (`InboundEdge`), then between the
edges of one processor (`ProcessorInput`). Source: Hazelcast Jet `ConcurrentInboundEdgeStream` and
`ProcessorTasklet.fillInbox`; vectors.md, sections 1 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_jet.dag.inbox import Inbox
from dagster_jet.dag.items import DONE, IDLE, Signal, SnapshotBarrier, Watermark
from dagster_jet.dag.queue import BoundedQueue
from dagster_jet.dag.watermark import Emission, WatermarkCoalescer
from dagster_jet.errors import JetError


class BarrierError(JetError):
    """Barriers came in an order that no runtime of this library produces."""


class BarrierAlignment:
    """Tracks the inputs that have had the barrier of the snapshot in progress.

    Args:
        input_count: queues of an edge, or edges of a processor.
        exactly_once: an input that has had its barrier is held until all others have had theirs.
            In at-least-once it is still read, unless the barrier is terminal.
    """

    def __init__(self, input_count: int, *, exactly_once: bool) -> None:
        self._live = set(range(input_count))
        self._received: set[int] = set()
        self._exactly_once = exactly_once
        self._barrier: SnapshotBarrier | None = None

    def is_held(self, input: int) -> bool:
        """Whether the input must not be read now."""
        return self.has_barrier(input) and (
            self._exactly_once or (self._barrier is not None and self._barrier.terminal)
        )

    def has_barrier(self, input: int) -> bool:
        return input in self._received

    def observe(self, input: int, barrier: SnapshotBarrier) -> None:
        if self._barrier is not None and self._barrier != barrier:
            raise BarrierError(f"input {input}: expected {self._barrier}, got {barrier}.")
        if input in self._received:
            raise BarrierError(f"input {input}: {barrier} came twice.")
        self._barrier = barrier
        self._received.add(input)

    def done(self, input: int) -> None:
        """Mark an input as done: it no longer counts."""
        self._live.discard(input)
        self._received.discard(input)

    @property
    def complete(self) -> SnapshotBarrier | None:
        """The barrier, if every live input has had it."""
        return self._barrier if self._live and self._received == self._live else None

    def passed(self) -> None:
        """The barrier was forwarded: all inputs are read again."""
        self._barrier = None
        self._received.clear()


@dataclass(frozen=True)
class Drained:
    """Result of one drain of an edge."""

    progress: bool
    events: bool = False
    in_band: Watermark | Signal | SnapshotBarrier | None = None
    """Follows the items that were moved into the inbox. A watermark may be followed by IDLE in the
    next drain, never in the same one."""


class InboundEdge:
    """All queues of one edge into one processor."""

    def __init__(
        self,
        ordinal: int,
        queues: Sequence[BoundedQueue],
        *,
        exactly_once: bool,
        priority: int = 0,
        max_retention_ms: int | None = None,
        now_ms: int = 0,
    ) -> None:
        self.ordinal, self.priority = ordinal, priority
        self._queues: list[BoundedQueue | None] = list(queues)
        self._first = 0
        self._alignment = BarrierAlignment(len(queues), exactly_once=exactly_once)
        self.coalescer = WatermarkCoalescer(
            len(queues), max_retention_ms=max_retention_ms, now_ms=now_ms
        )

    @property
    def is_done(self) -> bool:
        return all(queue is None for queue in self._queues)

    def drain_to(self, inbox: Inbox, limit: int, now_ms: int) -> Drained:
        """Move items into the inbox, up to the first barrier or watermark to forward."""
        if (barrier := self._alignment.complete) is not None:  # a watermark preceded it
            self._alignment.passed()
            return Drained(True, False, barrier)
        progress = events = False
        count = len(self._queues)
        first = self._first
        for number in ((first + step) % count for step in range(count)):
            # The next drain begins behind this queue, whatever ends this one (a full inbox, a
            # watermark or a barrier): a queue that ends every drain must not starve the others.
            self._first = (number + 1) % count
            queue = self._queues[number]
            if queue is None or self._alignment.is_held(number):
                continue
            moved, found = self._drain_queue(number, queue, inbox, limit - len(inbox))
            progress = progress or moved or found is not None
            events = events or moved
            if moved:
                self.coalescer.observe_event(number, now_ms=now_ms)
            emission = self._observe(number, found, now_ms)
            if emission is not None:
                return Drained(True, events, _in_band(emission))
            if (barrier := self._alignment.complete) is not None:
                self._alignment.passed()
                return Drained(True, events, barrier)
            if len(inbox) >= limit:
                break
        # Also while items arrive: a lagging queue need not be empty to be overtaken.
        emission = None if self.is_done else self.coalescer.check(now_ms)
        if emission is not None:
            return Drained(True, events, _in_band(emission))
        return Drained(progress, events)

    def _drain_queue(
        self, number: int, queue: BoundedQueue, inbox: Inbox, limit: int
    ) -> tuple[bool, object]:
        moved = False
        while (item := queue.peek()) is not None:
            if item is DONE and self._alignment.has_barrier(number):
                break  # items behind a pending barrier are not consumed
            if item is DONE or item is IDLE or isinstance(item, Watermark | SnapshotBarrier):
                queue.poll()
                return moved, item
            if limit <= 0:
                break
            inbox.add(queue.poll())
            moved, limit = True, limit - 1
        return moved, None

    def _observe(self, number: int, found: object, now_ms: int) -> Emission:
        if isinstance(found, Watermark):
            return self.coalescer.observe_watermark(number, found.timestamp_ms, now_ms=now_ms)
        if isinstance(found, SnapshotBarrier):
            self._alignment.observe(number, found)
        elif found is IDLE:
            return self.coalescer.observe_idle(number)
        elif found is DONE:
            self._queues[number] = None
            self._alignment.done(number)
            return self.coalescer.observe_done(number)
        return None


class ProcessorInput:
    """All inbound edges of one processor. Prioritised edges are exhausted first.

    After `fill`, `ordinal` is the edge of the items in the inbox, `watermark` follows them, and
    `exhausted` is the edge if it has ended with them.
    """

    def __init__(
        self,
        edges: Sequence[InboundEdge],
        *,
        exactly_once: bool,
        max_retention_ms: int | None = None,
        now_ms: int = 0,
    ) -> None:
        self._edges = sorted(edges, key=lambda edge: edge.ordinal)
        self._open = {edge.ordinal for edge in edges}
        self._cursor = 0
        self._alignment = BarrierAlignment(len(edges), exactly_once=exactly_once)
        self.coalescer = WatermarkCoalescer(
            len(edges), max_retention_ms=max_retention_ms, now_ms=now_ms
        )
        self.ordinal: int | None = None
        self.exhausted: int | None = None
        self.watermark: Watermark | Signal | None = None

    @property
    def is_done(self) -> bool:
        """Whether no edge is left to read. The last one may still have to be completed."""
        return not self._open

    @property
    def barrier(self) -> SnapshotBarrier | None:
        """The barrier, if all live edges have had it."""
        return self._alignment.complete

    def barrier_passed(self) -> None:
        self._alignment.passed()

    def check(self, now_ms: int) -> None:
        """Set `watermark` if elapsed time produces one."""
        if self.watermark is None:
            self.watermark = _in_band_watermark(self.coalescer.check(now_ms))

    @property
    def open_edges(self) -> list[InboundEdge]:
        """The edges that are not exhausted."""
        return [edge for edge in self._edges if edge.ordinal in self._open]

    def fill(self, inbox: Inbox, limit: int, now_ms: int) -> bool:
        """Read the next edge with items; return True if there were any."""
        group = self._group()
        for step in range(len(group)):
            position = (self._cursor + step) % len(group)
            edge = group[position]
            if self._alignment.is_held(edge.ordinal):
                continue
            drained = edge.drain_to(inbox, limit, now_ms)
            if drained.progress:
                self._cursor = position + 1
                self.ordinal = edge.ordinal
                self._observe(edge, drained, now_ms)
                return True
        return False

    def _group(self) -> list[InboundEdge]:
        best = min((e.priority for e in self._edges if e.ordinal in self._open), default=0)
        return [e for e in self._edges if e.ordinal in self._open and e.priority == best]

    def _observe(self, edge: InboundEdge, drained: Drained, now_ms: int) -> None:
        ordinal = edge.ordinal
        if drained.events:
            self.coalescer.observe_event(ordinal, now_ms=now_ms)
        emission: Emission = None
        if isinstance(drained.in_band, SnapshotBarrier):
            if any(e.ordinal in self._open and e.priority > edge.priority for e in self._edges):
                raise BarrierError(
                    f"{drained.in_band} came on edge {ordinal} while other edges wait for its end;"
                    " snapshots are postponed until prioritised edges are exhausted."
                )
            self._alignment.observe(ordinal, drained.in_band)
        elif isinstance(drained.in_band, Watermark):
            emission = self.coalescer.observe_watermark(
                ordinal, drained.in_band.timestamp_ms, now_ms=now_ms
            )
        elif drained.in_band is IDLE:
            emission = self.coalescer.observe_idle(ordinal)
        if edge.is_done:
            self._open.discard(ordinal)
            self._alignment.done(ordinal)
            self.exhausted = ordinal
            assert emission is None, "an edge ends in a look of its own"
            emission = self.coalescer.observe_done(ordinal)
        if emission is not None:
            self.watermark = _in_band_watermark(emission)


def _in_band(emission: int | Signal) -> Watermark | Signal:
    return Watermark(emission) if isinstance(emission, int) else emission


def _in_band_watermark(emission: Emission) -> Watermark | Signal | None:
    return None if emission is None else _in_band(emission)
