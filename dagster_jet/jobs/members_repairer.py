"""Removes a member that stays away from the store, so that the job recovers without operators.

While a member is away no write of data can reach all its replicas: snapshots fail, and the job
makes no progress. After `StoreConfig.member_timeout` the job takes the member out of the store. Its
backups are promoted, and its data is copied to other members. A majority must answer, no partition
may be lost, and only one process does it (`RepairLease`). A removed member that comes back is not
used until somebody adds it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from dagster_jet.errors import (
    ConfigurationError,
    StoreCorruptedError,
    StoreError,
    StoreUnwritableError,
)
from dagster_jet.execution.events import JobEvent, MembersNotRepaired, MembersRepaired
from dagster_jet.store import Store
from dagster_jet.system.background_thread import BackgroundThread

_logger = logging.getLogger(__name__)

_POLL_S_MAX = 15.0
_WAIT_S = 1.0
_END_S_MAX = 5.0
_DEAD_AFTER_S = 120.0
"""A repairing process without a sign of life for this long counts as dead."""


class MembersRepairer(BackgroundThread):
    """Watches the members on its own thread while a job runs.

    Args:
        store: the job's store.
        job: the job's name, for the events.
        timeout_s: how long a member may stay away; None: nothing is done.
        emit: receives the resulting events; called on this thread.
        fewest: minimum number of members to keep. For a job with split-brain protection more than
            half of all that it has ever seen; with fewer it could not start again.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        timeout_s: float | None,
        emit: Callable[[JobEvent], None],
        fewest: int = 0,
    ) -> None:
        super().__init__(f"jet-repair-{job}", wanted=timeout_s is not None, end_s=_END_S_MAX)
        self._fewest = fewest
        self._store, self._job, self._emit = store, job, emit
        self._timeout_s = timeout_s if timeout_s is not None else 0.0
        self._poll_s = min(_POLL_S_MAX, self._timeout_s / 4)
        self._lease = store.repair_lease()
        self._away_since: dict[str, float] = {}
        self._refused: set[str] = set()
        self._is_hopeless = self._too_few_stay = False
        self._looked_at = time.monotonic()
        self._looking = threading.Lock()

    def expects_repair(self) -> bool:
        """Checks the members now; whether one is away that may come back or be repaired around."""
        if not self._wanted:
            return False
        with suppress(StoreError):
            self._look()
            return self._is_waiting()
        return False  # no majority: only returning members help

    def wait(self, pause: Callable[[float], bool]) -> None:
        """Wait until all members are there, or nothing can be done; with a time limit.

        Args:
            pause: waits for the given seconds; True ends the wait.
        """
        end = time.monotonic() + self._timeout_s + _POLL_S_MAX
        while self._is_waiting() and time.monotonic() < end:
            if pause(min(_WAIT_S, self._poll_s)):
                return
            with suppress(StoreError):
                self._look()

    def _is_waiting(self) -> bool:
        return not self._is_hopeless and bool(self._away_since.keys() - self._refused)

    def _watch(self) -> None:
        while not self._ended.wait(self._poll_s):
            try:
                self._look()
                self._repair_around_the_lost()
            except StoreError as error:  # tried again at the next poll
                _logger.debug("the state of the store's members cannot be read: %s", error)

    def _look(self) -> None:
        with self._looking:
            away = self._store.away()
            now = time.monotonic()
            if now - self._looked_at > self._timeout_s / 2 + _POLL_S_MAX:
                self._away_since.clear()  # this process itself was away
            self._looked_at = now
            self._away_since = {m: self._away_since.get(m, now) for m in away}
            self._refused &= away.keys()
            self._too_few_stay = len(self._store.table.members) - len(away) < self._fewest
            self._is_hopeless = bool(away) and (
                self._too_few_stay or not self._store.can_give_up(away)
            )

    def _repair_around_the_lost(self) -> None:
        if self._too_few_stay:
            return
        now = time.monotonic()
        lost = {m for m, since in self._away_since.items() if now - since >= self._timeout_s}
        if not lost - self._refused and not self._lease.is_abandoned(_DEAD_AFTER_S):
            return
        if not self._lease.acquire(_DEAD_AFTER_S):
            return  # another process does it
        if self._repair(lost):
            # Crash window, also for a repair that fails half-way: the lease counts as abandoned,
            # and the next process that acquires it finishes the change.
            self._lease.release()

    def _repair(self, lost: Collection[str]) -> bool:
        """Carries the repair out, or finds it impossible; False: it was interrupted."""

        def on_progress(_: object) -> None:
            self._lease.renew()
            if self._ended.is_set():
                raise _EndedError

        try:
            changes = self._store.give_up(lost, on_progress=on_progress)
        except _EndedError:
            return False
        except (ConfigurationError, StoreCorruptedError, StoreUnwritableError) as error:
            self._refused |= set(lost)
            self._emit(MembersNotRepaired(self._job, tuple(sorted(lost)), str(error)))
            return True
        done = changes.migrated
        for member_id in changes.left:
            self._away_since.pop(member_id, None)
        if changes.left:
            self._emit(MembersRepaired(self._job, tuple(changes.left), done.partitions, done.bytes))
        return True


class _EndedError(Exception):
    """The job ended during the repair; the next lease holder continues it."""
