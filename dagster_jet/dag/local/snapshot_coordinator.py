"""Two-phase snapshot protocol of a local job: one decision after all have saved, then phase 2.

::

    WAITING ─► POSTPONED ─► SAVING ─► COMMITTING ─► WAITING | ENDED

Runs on the cooperative thread, one step per round; only `request` and `end` are thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from dagster_jet.dag import Phase1, Phase2, ProcessorTasklet, SnapshotContext
from dagster_jet.dag.local.snapshots import Ended, MemorySnapshots, Snapshot, SnapshotWriter
from dagster_jet.dag.saved_entry import SavedEntry
from dagster_jet.errors import JobStateError, SnapshotFailedError

_logger = logging.getLogger(__name__)


class SnapshotPhase(Enum):
    """Phase of the snapshot in progress."""

    WAITING = "waiting"
    """No snapshot is in progress."""
    POSTPONED = "postponed"
    """A snapshot is requested, but an open prioritised edge prevents aligned barriers."""
    SAVING = "saving"
    """Phase 1: every tasklet saves and prepares. Then the snapshot is kept: the decision."""
    COMMITTING = "committing"
    """Phase 2: every tasklet receives the decision."""
    ENDED = "ended"
    """After a terminal snapshot, or at the end of the execution."""


LEGAL_MOVES: dict[SnapshotPhase, frozenset[SnapshotPhase]] = {
    SnapshotPhase.WAITING: frozenset({SnapshotPhase.POSTPONED, SnapshotPhase.ENDED}),
    SnapshotPhase.POSTPONED: frozenset({SnapshotPhase.SAVING, SnapshotPhase.ENDED}),
    SnapshotPhase.SAVING: frozenset({SnapshotPhase.COMMITTING, SnapshotPhase.ENDED}),
    SnapshotPhase.COMMITTING: frozenset({SnapshotPhase.WAITING, SnapshotPhase.ENDED}),
    SnapshotPhase.ENDED: frozenset(),
}


@dataclass
class Participant:
    """A tasklet and its saved entries."""

    tasklet: ProcessorTasklet
    writer: SnapshotWriter
    vertex: str
    index: int


@dataclass(frozen=True)
class _Request:
    terminal: bool = False
    export_only: bool = False
    result: Future[Snapshot] = field(default_factory=Future)


class SnapshotCoordinator:
    """Takes snapshots one at a time: at an interval, and on request.

    Args:
            context: passes requests to the tasklets.
            participants: all tasklets of the execution.
            snapshots: keeps the snapshots.
            partition_count: number of partitions of the participants' entries.
            interval_ms: from the end of a snapshot's phase 2 to the start of the next; None: never.
            awaited: vertices that must have ended before a snapshot may begin.
            now_ms: time of the start.
    """

    def __init__(
        self,
        context: SnapshotContext,
        participants: Sequence[Participant],
        snapshots: MemorySnapshots,
        *,
        partition_count: int,
        interval_ms: int | None,
        awaited: Collection[str],
        now_ms: int,
    ) -> None:
        self._context, self._participants, self._snapshots = context, participants, snapshots
        self._partition_count = partition_count
        self._interval_ms = interval_ms
        self._awaited = [p.tasklet for p in participants if p.vertex in awaited]
        self._due_ms = None if interval_ms is None else now_ms + interval_ms
        self._next_id = context.next_id
        self._queue: deque[_Request] = deque()
        self._lock = threading.Lock()
        self._request: _Request | None = None
        self._snapshot: Snapshot | None = None
        self._error: Exception | None = None
        self.phase = SnapshotPhase.WAITING
        self.taken = self.failed = 0
        self.ended_by_request = False
        """A terminal snapshot was completed: the execution ends with it."""

    # --- from any thread ------------------------------------------------------------------------

    def request(self, *, terminal: bool = False, export_only: bool = False) -> Future[Snapshot]:
        """Queue a snapshot. The future is done when its phase 2 is complete everywhere.

        It can be cancelled until the snapshot begins.
        """
        request = _Request(terminal, export_only)
        with self._lock:
            if self.phase is SnapshotPhase.ENDED:
                raise JobStateError("the job has ended.", cure="Ask for a snapshot while it runs.")
            self._queue.append(request)
        return request.result

    def end(self, error: BaseException | None) -> None:
        """End the execution; pending snapshot requests fail."""
        with self._lock:
            if self.phase is not SnapshotPhase.ENDED:
                self._move(SnapshotPhase.ENDED)
            waiting = [] if self._request is None else [self._request]
            while (request := self._next_request()) is not None:
                waiting.append(request)
        for request in waiting:
            failure = SnapshotFailedError(
                "the job ended before the snapshot was taken.",
                cure="Its result or its error says why.",
            )
            failure.__cause__ = error
            request.result.set_exception(failure)

    # --- on the cooperative thread --------------------------------------------------------------

    def tick(self, now_ms: int) -> bool:
        """Advance if possible; return True if it did."""
        if self.phase is SnapshotPhase.WAITING:
            return self._begin(now_ms)
        if self.phase is SnapshotPhase.POSTPONED and all(t.is_done for t in self._awaited):
            return self._start_phase1()
        snapshot_id = self._next_id
        if self.phase is SnapshotPhase.SAVING and self._all(snapshot_id, saved=True):
            return self._decide()
        if self.phase is SnapshotPhase.COMMITTING and self._all(snapshot_id, saved=False):
            return self._finish(now_ms)
        return False

    def _begin(self, now_ms: int) -> bool:
        with self._lock:
            self._request = self._next_request()
        if self._request is None and self._due_ms is not None and now_ms >= self._due_ms:
            self._request = _Request()
        if self._request is None:
            return False
        self._move(SnapshotPhase.POSTPONED)
        return True

    def _next_request(self) -> _Request | None:
        """Return the first request that is not cancelled; it can no longer be cancelled."""
        while self._queue:
            request = self._queue.popleft()
            if request.result.set_running_or_notify_cancel():
                return request
        return None

    def _start_phase1(self) -> bool:
        assert self._request is not None
        self._move(SnapshotPhase.SAVING)
        self._context.phase1 = Phase1(
            self._next_id, self._request.terminal, self._request.export_only
        )
        return True

    def _all(self, snapshot_id: int, *, saved: bool) -> bool:
        tasklets = (p.tasklet for p in self._participants)
        if saved:
            return all(t.has_saved(snapshot_id) for t in tasklets)
        return all(t.has_committed(snapshot_id) for t in tasklets)

    def _decide(self) -> bool:
        snapshot = Snapshot(self._next_id, self._collect(), self._partition_count, self._ended())
        # Decision point: until `put` returns the snapshot does not count; afterwards a restart
        # restores it, whether or not phase 2 has reached any tasklet.
        # An export is kept by its requester: sinks have promised nothing for it.
        try:
            if self._request is None or not self._request.export_only:
                self._snapshots.put(snapshot)
        except Exception as error:  # noqa: BLE001 - any failure to keep it is a failed snapshot
            self._snapshot, self._error = None, error
            self.failed += 1
            _logger.warning("snapshot %d is discarded: %s", self._next_id, error)
        else:
            self._snapshot, self._error = snapshot, None
            self.taken += 1
        self._move(SnapshotPhase.COMMITTING)
        self._context.phase2 = Phase2(self._next_id, success=self._error is None)
        return True

    def _finish(self, now_ms: int) -> bool:
        request, self._request = self._request, None
        assert request is not None
        self._next_id += 1
        self._due_ms = None if self._interval_ms is None else now_ms + self._interval_ms
        self.ended_by_request = request.terminal
        with self._lock:
            self._move(SnapshotPhase.ENDED if request.terminal else SnapshotPhase.WAITING)
        if self._snapshot is not None:
            request.result.set_result(self._snapshot)
        else:
            failure = SnapshotFailedError(
                f"snapshot {self._next_id - 1} could not be kept: {self._error}",
                cure="The snapshot before it is still the latest.",
            )
            failure.__cause__ = self._error
            request.result.set_exception(failure)
        return True

    def _collect(self) -> Mapping[str, tuple[SavedEntry, ...]]:
        entries: dict[str, list[SavedEntry]] = {p.vertex: [] for p in self._participants}
        for participant in self._participants:
            entries[participant.vertex] += participant.writer.take()
        return {vertex: tuple(saved) for vertex, saved in entries.items()}

    def _ended(self) -> Mapping[str, Ended]:
        indices: dict[str, set[int]] = {}
        count: dict[str, int] = {}
        for participant in self._participants:
            count[participant.vertex] = count.get(participant.vertex, 0) + 1
            if participant.tasklet.ended_before(self._next_id):
                indices.setdefault(participant.vertex, set()).add(participant.index)
        return {v: Ended(count[v], frozenset(found)) for v, found in indices.items()}

    def _move(self, to: SnapshotPhase) -> None:
        assert to in LEGAL_MOVES[self.phase], f"{self.phase} -> {to}"
        self.phase = to
