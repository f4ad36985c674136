"""A bulkhead around each member: a member that hangs delays only its own callers.

A call that does not return cannot be stopped, only abandoned; its thread keeps waiting. So each
member has a small number of threads of its own. While a call is past its deadline, no more calls
are begun: a member that hangs blocks at most ``THREADS_MAX`` threads, and its callers fail at once.
They are daemon threads: a process ends without waiting for them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from dagster_jet.errors import StoreUnavailableError

THREADS_MAX = 16
"""Concurrent calls of one process to one member; further calls wait for a thread."""

_IDLE_SECONDS_MAX = 2.0
"""A running job calls more often, and starting a thread takes only 0.1 ms. A longer time would let
thousands of threads end together in a process that has had hundreds of members, all competing for
the interpreter's lock."""


class Call:
    """One call to a member.

    Args:
        work: makes the call and delivers its result; raises nothing.
        within_s: deadline in seconds, including the wait for a thread.
    """

    def __init__(self, work: Callable[[], None], within_s: float) -> None:
        self.work = work
        self.within_s = within_s
        self.deadline = time.monotonic() + within_s
        self.is_abandoned = False
        """No caller waits for the answer any more."""


class Bulkhead:
    """The threads of this process for one member, and their calls."""

    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self._changed = threading.Condition()
        self._waiting: deque[Call] = deque()
        self._running: set[Call] = set()
        self._threads = 0
        self._idle = 0

    def begin(self, call: Call) -> None:
        """Run a call on one of the threads, now or as soon as one is free.

        Raises:
            StoreUnavailableError: an earlier call is past its deadline and has not returned, or
                this process cannot start a thread. The call is not made.
        """
        with self._changed:
            begun = min((one.deadline for one in self._running), default=call.deadline)
            if begun < time.monotonic():
                raise StoreUnavailableError(
                    f"the store member {self._member_id} hangs: an earlier call to it has not "
                    "returned.",
                    cure="Other replicas are used meanwhile. Check the member and the network to "
                    "it.",
                )
            self._waiting.append(call)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < THREADS_MAX:
                self._start_thread(call)

    def _start_thread(self, call: Call) -> None:
        name = f"jet-store {self._member_id}"
        try:
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            if self._threads:
                return  # one of them takes the call
            self._waiting.remove(call)
            raise StoreUnavailableError(
                f"the store member {self._member_id} was not called: {error}.",
                cure="Allow this process more threads (`ulimit -u`, the container's limit of "
                "pids) or memory.",
            ) from error
        self._threads += 1

    def abandon(self, call: Call) -> None:
        """Stop waiting for a call: it is dropped, or its result is ignored if it has begun."""
        with self._changed:
            call.is_abandoned = True
            if call in self._waiting:
                self._waiting.remove(call)

    def has_overdue_calls(self) -> bool:
        """Whether an abandoned call has not returned yet."""
        with self._changed:
            return any(call.is_abandoned for call in self._running)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            _served.call = call
            try:
                call.work()
            finally:
                with self._changed:
                    self._running.discard(call)

    def _next(self) -> Call | None:
        with self._changed:
            self._idle += 1
            while not self._waiting:
                if not self._changed.wait(_IDLE_SECONDS_MAX) and not self._waiting:
                    self._idle -= 1
                    self._threads -= 1
                    return None
            self._idle -= 1
            call = self._waiting.popleft()
            self._running.add(call)
            return call


_served = threading.local()
"""The call that this thread works on."""


def progressed() -> None:
    """Give the call that this thread works on its whole time once more, from now.

    For work whose length the caller does not know, after each answer of a server.
    """
    call: Call | None = getattr(_served, "call", None)
    if call is not None:
        call.deadline = time.monotonic() + call.within_s


_bulkheads: dict[str, Bulkhead] = {}
_lock = threading.Lock()


def bulkhead_of(member_id: str) -> Bulkhead:
    """Return this process's threads for a member."""
    with _lock:
        if member_id not in _bulkheads:
            _bulkheads[member_id] = Bulkhead(member_id)
        return _bulkheads[member_id]


def _begin_anew() -> None:
    global _bulkheads, _lock
    _bulkheads, _lock = (
        {},
        threading.Lock(),
    )  # threads do not survive a fork; the child starts its own


os.register_at_fork(after_in_child=_begin_anew)
