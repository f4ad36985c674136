"""From the job's driver thread to Dagster's main thread, without either waiting for the other."""

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
    """Bounded; the driver thread never blocks, the main thread never holds a lock.

    A lock would be wrong here: Dagster raises its interrupt inside the main thread at any byte
    code, also between taking a lock and the ``with`` that would give it back, and the driver thread
    would hang for ever. A deque's ``append`` and ``popleft`` are atomic.

    Losing an event is harmless (the store says the same), so the oldest go first when nobody
    drains. Epochs and progress are not kept: there is much of them, and nothing of it is committed.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._events: deque[JobEvent] = deque(maxlen=capacity)

    def put(self, event: JobEvent) -> None:
        """Called on the driver thread."""
        if not isinstance(event, EpochCompleted | ProgressReported):
            self._events.append(event)

    def drain(self) -> list[JobEvent]:
        """Return what has come in, in order; of the committed snapshots only the newest.

        Its totals contain those of the ones before it.
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
