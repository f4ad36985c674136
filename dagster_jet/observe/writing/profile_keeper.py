"""Keeps an execution's profile in the store, so that other processes can read it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_jet.execution.notifications import Died, Notification
from dagster_jet.execution.worker import Worker
from dagster_jet.observe.writing.kept_value import KeptValue, read_kept
from dagster_jet.observe.writing.recent_timings import RecentTimings
from dagster_jet.store import Store

_logger = logging.getLogger(__name__)

KEEP_EVERY_S = 5.0
_GRACE_S = 2.0
"""Longest time for which the end of an execution waits for the last profile."""
_PROFILE = "profile"


@dataclass
class ProfileKeeper:
    """Keeps the profile of one execution. The loop's thread calls it; another thread writes.

    Best effort: a profile is never a reason for a job to fail.
    """

    store: Store
    job: str
    execution_id: int
    timings: RecentTimings
    seconds: Callable[[], float]
    now_ms: Callable[[], int]
    _kept: int = 0
    """`RecentTimings.added` at the last write."""
    _kept_at: float = float("-inf")
    _value: KeptValue = field(init=False)
    _worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self._value = KeptValue(self.store, self.job, _PROFILE, self.execution_id)
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
        if self._kept == self.timings.added:
            return
        self._kept, self._kept_at = self.timings.added, self.seconds()
        data = self.timings.to_bytes(self.now_ms())
        self._worker.start(lambda: self._value.write(data))

    def _note(self, notification: Notification) -> None:
        if isinstance(notification, Died):
            _logger.warning(
                "job %r: its profile could not be saved: %r", self.job, notification.error
            )


def read_timings(store: Store, job: str) -> tuple[int, RecentTimings, int] | None:
    """Returns the newest profile of a job: the execution, its timings, and when they were written.

    None: there is none.

    Raises:
        StoreError: it cannot be read now.
    """
    found = read_kept(store, job, _PROFILE)
    if found is None:
        return None
    execution_id, data = found
    return (execution_id, *RecentTimings.from_bytes(data, job))
