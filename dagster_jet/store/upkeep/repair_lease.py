"""The lease of the process that repairs the store by itself: one at a time, of all that would.

Two repairs at once do no harm (``administration.py``), but each stops the other's copying, and may
do so for ever. The lease is a value in a register: its owner, and a heartbeat that the owner counts
up while it works. Where the heartbeat stands still the lease is taken over; the former owner hears
of it at its next heartbeat. Operators do not wait for a lease.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from dagster_jet.errors import StaleConfigurationError, StoreError
from dagster_jet.store.quorum import RegisterClient

REPAIR = "repair"
"""The name of the register with the lease; no namespace has one of that name."""

_FORMAT = 1
_BEAT_SECONDS = 1.0


class RepairLease:
    """The lease as one process sees it. For one thread.

    Args:
        register: returns the register with the lease, on the members as they are now.
    """

    def __init__(self, register: Callable[[], RegisterClient]) -> None:
        self._register = register
        self._me = secrets.token_hex(8)
        self._seen: bytes | None = None
        self._seen_at = time.monotonic()
        self._beat = 0
        self._next_beat = 0.0

    def acquire(self, dead_after_s: float) -> bool:
        """Acquire the lease, if nobody has it or its owner has been silent for so many seconds.

        After a crash of the owner it goes to the first who has watched it for that long.

        Returns:
            Whether this process has the lease now.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        found = self._look()
        if self._is_working(found, dead_after_s):
            return False
        self._beat = 0
        return self._replace(found, over=False)

    def is_abandoned(self, dead_after_s: float) -> bool:
        """Whether a repair began and did not end: this process's, or one of a process now dead.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        found = self._look()
        return not _is_over(found) and not self._is_working(found, dead_after_s)

    def renew(self) -> None:
        """Count the heartbeat up; to be called often, writes once a second at most.

        Raises:
            StaleConfigurationError: another process has taken the lease over: stop.
        """
        if time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + _BEAT_SECONDS
        try:
            found = self._look()
            if found is not None and json.loads(found)["by"] == self._me:
                self._beat += 1
                self._replace(found, over=False)
                return
        except StoreError:
            return  # the registers may be on their way: the next heartbeat finds out
        raise StaleConfigurationError(
            "another process has taken over the repair of the store.",
            cure="Nothing is to be done: it goes on from there.",
        )

    def release(self) -> None:
        """Release the lease, all being done; where that fails it counts as abandoned later."""
        with suppress(StoreError):
            found = self._look()
            if found is not None and json.loads(found)["by"] == self._me:
                self._replace(found, over=True)

    def _is_working(self, found: bytes | None, dead_after_s: float) -> bool:
        """Whether another process is at it."""
        if found is None or _is_over(found) or json.loads(found)["by"] == self._me:
            return False
        return time.monotonic() - self._seen_at < dead_after_s

    def _look(self) -> bytes | None:
        value = self._register().read()
        found = None if value is None else value.value
        if found != self._seen:
            self._seen, self._seen_at = found, time.monotonic()
        return found

    def _replace(self, expected: bytes | None, *, over: bool) -> bool:
        value = {"format": _FORMAT, "by": self._me, "beat": self._beat, "over": over}
        replaced = self._register().update(
            lambda current: json.dumps(value).encode() if current == expected else None
        )
        return replaced is not None


def _is_over(found: bytes | None) -> bool:
    return found is None or bool(json.loads(found)["over"])
