"""Keeps an execution's profile in the store, so that other processes can read it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_jet.errors import StoreError
from dagster_jet.execution.notifications import Died, Notification
from dagster_jet.execution.recent_laps import RecentLaps
from dagster_jet.execution.worker import Worker
from dagster_jet.store import MapKey, ReplicatedMap, Store

_logger = logging.getLogger(__name__)

KEEP_EVERY_S = 5.0
_GRACE_S = 2.0
"""So long the end of an execution waits for the last profile."""
_READS_MAX = 3


@dataclass
class ProfileKeeper:
    """Of one execution. The loop's thread calls it; a thread beside it writes.

    One value, of bounded size, which is written under a new name each time: a crash between two
    replicas leaves no two that differ. Best effort: a profile is never a reason for a job to fail.
    """

    store: Store
    job: str
    execution_id: int
    laps: RecentLaps
    seconds: Callable[[], float]
    now_ms: Callable[[], int]
    _kept: int = 0
    """`RecentLaps.added` at the last write."""
    _kept_at: float = float("-inf")
    _writes: int = 0
    _older: list[MapKey] | None = None
    """What the next write replaces; None: whatever is there, of older executions."""
    _worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self._worker = Worker(f"jet-profile-{self.job}", self._note)

    def keep_if_due(self) -> None:
        """Every few seconds, if there was something to measure."""
        if self.seconds() - self._kept_at >= KEEP_EVERY_S:
            self._keep()

    def close(self) -> None:
        """Keeps the last epochs as well. A store that hangs is not waited for."""
        self._keep()
        self._worker.close(_GRACE_S)

    def _keep(self) -> None:
        if self._kept == self.laps.added:
            return
        self._kept, self._kept_at = self.laps.added, self.seconds()
        data = self.laps.to_bytes(self.now_ms())
        self._worker.start(lambda: self._write(data))

    def _note(self, notification: Notification) -> None:
        if isinstance(notification, Died):
            _logger.warning(
                "job %r: its profile could not be kept: %r", self.job, notification.error
            )

    def _write(self, data: bytes) -> None:
        self._writes += 1
        try:
            kept = profiles(self.store, self.job)
            key = kept.key(_name(self.execution_id, self._writes))
            kept.put_all({key: data})
            older = self._older
            if older is None:
                older = [k for k in kept.keys("") if k.name < key.name]
            self._older = [key]
            kept.delete_all(older)
        except (StoreError, OSError) as error:
            _logger.debug("job %r: its profile could not be kept: %s", self.job, error)
            self._older = None


def read_laps(store: Store, job: str) -> tuple[int, RecentLaps, int] | None:
    """Returns the newest profile of a job: the execution, its laps, and when they were written.

    None: there is none.

    Raises:
        StoreError: it cannot be read now.
    """
    kept = profiles(store, job)
    for _ in range(_READS_MAX):
        newest = max(kept.keys(""), key=lambda key: key.name, default=None)
        if newest is None:
            return None
        data = kept.get(newest)
        if data is not None:  # else a newer one has replaced it meanwhile
            return (int(newest.name.partition("-")[0]), *RecentLaps.from_bytes(data, job))
    return None


def profiles(store: Store, job: str) -> ReplicatedMap:
    return store.map(f"jobs/{job}/profile")


def _name(execution_id: int, number: int) -> str:
    return f"{execution_id:012d}-{number:09d}"
