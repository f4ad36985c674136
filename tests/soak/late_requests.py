"""Commits that arrive late: a network keeps one back at random moments, and lets it go later."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from contextlib import suppress

from ..servers.proxy import Proxy

_APART_S, _LATE_S = (2.0, 12.0), 4.0
_NEVER = 0.2
"""One in five does not arrive at all."""


class LateRequests:
    """Of the clients of a proxy, whose connections are reset meanwhile; on a thread of its own.

    Args:
        is_it: makes what is told what a client says, and says whether that may be late.
    """

    def __init__(
        self, proxy: Proxy, is_it: Callable[[], Callable[[bytes], bool]], seed: int
    ) -> None:
        self._proxy, self._is_it, self._rng = proxy, is_it, random.Random(seed)
        self.late = self.lost = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late requests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is held from now on."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        self._proxy.close()

    def _run(self) -> None:
        while not self._over.wait(self._rng.uniform(*_APART_S)):
            held = self._proxy.hold_next(self._is_it())
            while not held.is_caught:
                if self._over.wait(0.05):
                    return
            self._over.wait(self._rng.uniform(0, _LATE_S))
            if self._rng.random() < _NEVER:
                held.drop()
                self.lost += 1
                continue
            with suppress(OSError):  # the server was killed meanwhile, or is busy for long
                held.release()
                self.late += 1


class CommitOfSql:
    """Is it the commit of an epoch, or of a transaction that is prepared?"""

    _has_marked = False

    def __call__(self, request: bytes) -> bool:
        said = request.lower()
        if b"update dagster_jet_epochs" in said:
            self._has_marked = True
        return b"commit prepared" in said or (
            self._has_marked and re.search(rb"\bcommit\b", said) is not None
        )
