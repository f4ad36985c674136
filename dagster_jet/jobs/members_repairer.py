"""Repairs the store around a member that stays away, so that it recovers its safety by itself.

While a member is away no write of data can reach all its replicas: snapshots fail, and the job gets
no further. After `JobConfig.member_timeout` the job takes the member out of the store; its backups
are promoted, and what it held is copied to the others. A majority must answer, no partition may be
lost, and of all processes one does it (`RepairLease`). A member that comes back later is a
stranger, until somebody adds it again.
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
"""Without a sign of life for so long, whoever was repairing is dead."""


class MembersRepairer(BackgroundThread):
    """Looks after the members on a thread of its own, as long as a job runs.

    Args:
        store: the job's.
        job: for the events.
        timeout_s: how long a member may stay away; None: nothing is done.
        emit: hears what was done; called on this thread.
        fewest: so many members must stay. Of a job with split-brain protection more than half of
            all that it has ever seen: with fewer it could not start again.
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
        """Ask the members now: whether one is away that will be repaired around, or come back."""
        if not self._wanted:
            return False
        with suppress(StoreError):
            self._look()
            return self._is_waiting()
        return False  # no majority: there is nothing to wait for but the members themselves

    def wait(self, pause: Callable[[float], bool]) -> None:
        """Wait until all members are there, or nothing can be done; with a bound.

        Args:
            pause: waits for so many seconds; True: there is something else to do.
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
            except StoreError as error:  # asked again in a moment
                _logger.debug("the members of the store cannot be looked at: %s", error)

    def _look(self) -> None:
        with self._looking:
            away = self._store.away()
            now = time.monotonic()
            if now - self._looked_at > self._timeout_s / 2 + _POLL_S_MAX:
                self._away_since.clear()  # it was us who were away
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
            # Crash window, also where a repair fails half-way: the lease counts as abandoned, and
            # whoever acquires it next finishes the change.
            self._lease.release()

    def _repair(self, lost: Collection[str]) -> bool:
        """Carry it out, or find that it cannot be done; False: it was broken off."""

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
    """The job has ended in the middle: whoever has the next turn goes on."""
