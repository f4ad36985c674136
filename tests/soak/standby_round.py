"""A second process waits for the job: it takes over from an owner that was killed or sleeps."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from typing import Any

import psutil

from .driver import LEASE_S
from .round import Round


class StandbyRound(Round):
    """Two processes at all times; a new standby is started when one is used or dies."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._standby: subprocess.Popen[bytes] | None = None

    def _start(self, until: str) -> None:
        """The standby is the next owner, and one that reads to the end is a process of its own."""
        if until == "completed" or not self._stands_by():
            super()._start(until)
        else:
            self._driver, self._standby = self._standby, None
        if until != "completed":
            self._replace_standby()

    def _restart_if_dead(self, until: str) -> None:
        super()._restart_if_dead(until)
        if until != "completed":
            self._replace_standby()

    def _stands_by(self) -> bool:
        return self._standby is not None and self._standby.poll() is None

    def _replace_standby(self) -> None:
        if not self._stands_by():
            self._standby = self._launch("stopped", standby=True)

    def _kill_someone(self) -> None:
        """A driver sleeps for half of its lease to three times as long, and wakes up as it was."""
        assert self._standby is not None
        self._tree_of(self._standby)
        victim = self._rng.choice(self.setting.victims)
        if victim == "standby":
            self._standby.kill()
            self._standby.wait()
            self._count(victim)
        elif victim == "sleeping driver":
            assert self._driver is not None
            with suppress(psutil.NoSuchProcess):
                sleeper = psutil.Process(self._driver.pid)
                sleeper.send_signal(signal.SIGSTOP)
                self._count(victim)
                time.sleep(LEASE_S * self._rng.uniform(0.5, 3))
                sleeper.send_signal(signal.SIGCONT)
        else:
            self._kill(victim)

    def _complete(self) -> None:
        if self._standby is not None:
            self._tree_of(self._standby)
            self._standby.kill()
            self._standby.wait()
        super()._complete()

    def _end_all(self) -> None:
        if self._standby is not None:
            self._tree_of(self._standby)
        super()._end_all()
        if self._standby is not None:
            self._standby.wait()
