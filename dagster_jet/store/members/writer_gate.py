"""A lock in front of LMDB's writer lock, with a time-out.

LMDB waits for its writer without a time-out. A writer that dies releases the lock. One that is
stopped inside its transaction (SIGSTOP, a frozen container, a debugger) keeps it and blocks every
other writing process. So writers first take an advisory lock on a file beside LMDB's, and give up
after a while. The kernel releases it when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dagster_jet.store.members.folder import FILE_MODE

WAIT_SECONDS_MAX = 15.0
"""Longer than a batch takes on a working disk, also behind a few other writers."""

WAIT_SECONDS_WHILE_STUCK = 0.1
"""Shorter wait after a time-out, until the gate opens again."""

_PAUSE_SECONDS_MAX = 0.002


class WriterGate:
    """The gate of one folder. For one thread at a time.

    A forked child must not inherit the open file: it would keep the lock of a dead parent.
    ``close`` before a fork.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_stuck = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the gate inside the ``with`` block.

        Raises:
            TimeoutError: another process held it for the whole wait.
            OSError: the file cannot be created.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        descriptor = self._descriptor
        self._lock(descriptor)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; ``held`` opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, descriptor: int) -> None:
        begun = time.monotonic()
        wait_s = WAIT_SECONDS_WHILE_STUCK if self._is_stuck else WAIT_SECONDS_MAX
        pause_s = 0.0001
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() - begun > wait_s:
                    self._is_stuck = True
                    raise TimeoutError(
                        f"another process has been writing for {WAIT_SECONDS_MAX:.0f} seconds"
                    ) from None
                # flock has no time-out, hence the polling.
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_SECONDS_MAX)
            else:
                self._is_stuck = False
                return
