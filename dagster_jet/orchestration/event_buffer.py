"""Passes events from the job's driver thread to Dagster's main thread without blocking either."""

from __future__ import annotations

from collections import deque

from dagster_jet.execution.events import (
    EpochCompleted,
    JobEvent,
    ProgressReported,
    SnapshotCommitted,
)

CAPACITY = 1024


class EventBuffer:
    """Bounded buffer of job events; the driver thread never blocks, the main thread takes no lock.

    A lock would be unsafe: Dagster raises its interrupt in the main thread at any byte code, also
    between acquiring a lock and the ``with`` that releases it, and the driver thread would hang for
    ever. A deque's ``append`` and ``popleft`` are atomic.

    A lost event is harmless, because the store has the same information, so the oldest events are
    dropped when the buffer is full. Epoch and progress events are not kept: they are frequent and
    describe nothing committed.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[JobEvent] = deque(maxlen=capacity)

    def put(self, event: JobEvent) -> None:
        """Add an event; called on the driver thread."""
        if not isinstance(event, EpochCompleted | ProgressReported):
            self._events.append(event)

    def drain(self) -> list[JobEvent]:
        """Return the buffered events in order, but only the newest of the committed snapshots.

        The totals of a snapshot include those of earlier ones.
        """
        events: list[JobEvent] = []
        while self._events:
            events.append(self._events.popleft())
        newest = max(
            (i for i, event in enumerate(events) if isinstance(event, SnapshotCommitted)),
            default=-1,
        )
        return [
            event
            for i, event in enumerate(events)
            if i == newest or not isinstance(event, SnapshotCommitted)
        ]
