"""The lease for repairing the store automatically: only one process at a time.

Two concurrent repairs do no harm (``administration.py``), but each stops the other's copying,
possibly for ever. The lease is a value in a register: its owner, and a heartbeat that the owner
increments while it works. A lease whose heartbeat stops is taken over; the former owner learns of
it at its next heartbeat. Operators do not wait for the lease.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from dagster_jet.errors import MembersChangedError, StoreError
from dagster_jet.store.quorum import RegisterClient

REPAIR = "repair"
"""Name of the register with the lease; no namespace has a register of that name."""

_FORMAT = 1
_BEAT_SECONDS = 1.0


class RepairLease:
    """One process's view of the lease. For one thread.

    Args:
        register: returns the register with the lease, on the current members.
    """

    def __init__(self, register: Callable[[], RegisterClient]) -> None:
        self._register = register
        self._me = secrets.token_hex(8)
        self._seen: bytes | None = None
        self._seen_at = time.monotonic()
        self._beat = 0
        self._next_beat = 0.0

    def acquire(self, dead_after_s: float) -> bool:
        """Acquire the lease, if it is free or its owner has been silent for ``dead_after_s``.

        After a crash of the owner the first process that has watched it for that long acquires it.

        Returns:
            Whether this process now has the lease.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        found = self._look()
        if self._is_working(found, dead_after_s):
            return False
        self._beat = 0
        return self._replace(found, over=False)

    def is_abandoned(self, dead_after_s: float) -> bool:
        """Whether a repair of this process or of a dead one has begun and not ended.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        found = self._look()
        return not _is_over(found) and not self._is_working(found, dead_after_s)

    def renew(self) -> None:
        """Increment the heartbeat. Call it often; it writes at most once a second.

        Raises:
            MembersChangedError: another process has taken over the lease: stop.
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
            return  # the registers may be moving: the next heartbeat finds out
        raise MembersChangedError(
            "another process has taken over the repair of the store.",
            cure="Do nothing: that process continues the repair.",
        )

    def release(self) -> None:
        """Release the lease after the repair; if that fails it counts as abandoned later."""
        with suppress(StoreError):
            found = self._look()
            if found is not None and json.loads(found)["by"] == self._me:
                self._replace(found, over=True)

    def _is_working(self, found: bytes | None, dead_after_s: float) -> bool:
        """Whether another process is repairing."""
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
