"""A bad network: it keeps commits back and lets them go later, and is cut or frozen, at random."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from contextlib import suppress

from ..servers.proxy import Proxy

_APART_S, _LATE_S = (2.0, 12.0), 4.0
_SHARE = 0.4
"""Share of the requests that are hit while the network is bad. A slow machine sends few requests: a
job whose requests were all late would never progress."""
_UNANSWERED = 0.4
_NEVER = 0.2
"""One in five does not arrive at all."""
_BAD, _BAD_S = 0.3, 15.0
"""Share of the times at which nothing gets through at all, for up to so many seconds."""


class LateRequests:
    """Delays requests of a proxy's clients and resets their connections meanwhile, or lets nothing
    through; on a thread of its own.

    Args:
        is_it: makes what is told what a client says, and says whether that may be late.
        loses_answers: some requests are carried out at once, and their answers do not arrive.
    """

    def __init__(
        self,
        proxy: Proxy,
        is_it: Callable[[], Callable[[bytes], bool]],
        seed: int,
        *,
        loses_answers: bool = False,
    ) -> None:
        self._proxy, self._is_it, self._rng = proxy, is_it, random.Random(seed)
        self._loses_answers = loses_answers
        self.late = self.lost = self.unanswered = self.outages = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late requests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Holds no request from now on."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        self._proxy.close()

    def note(self) -> str:
        """Returns what has happened, for people."""
        return (
            f"{self.late} late commits, {self.lost} lost, {self.unanswered} unanswered, "
            f"{self.outages} outages"
        )

    def _run(self) -> None:
        while not self._over.wait(self._rng.uniform(*_APART_S)):
            if self._rng.random() < _BAD:
                self._let_nothing_through()
                continue
            if self._loses_answers and self._rng.random() < _UNANSWERED:
                self._lose_an_answer()
                continue
            held = self._proxy.hold_next(self._some())
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

    def _some(self) -> Callable[[bytes], bool]:
        is_it = self._is_it()
        return lambda said: is_it(said) and self._rng.random() < _SHARE

    def _let_nothing_through(self) -> None:
        """Resets all connections, or freezes them: no error tells that."""
        with self._rng.choice((self._proxy.cut, self._proxy.silent))():
            self._over.wait(self._rng.uniform(0, _BAD_S))
        self.outages += 1

    def _lose_an_answer(self) -> None:
        """The server does what it was asked for, and nobody is told. Then it is not reached for a
        moment."""
        self._proxy.cut_answer_to(self._some())
        while not self._proxy.is_cut:
            if self._over.wait(0.05):
                return
        self.unanswered += 1
        self._over.wait(self._rng.uniform(0, 1))
        self._proxy.restore()


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
