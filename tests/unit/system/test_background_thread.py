"""A watcher of a job survives a look that fails."""

from __future__ import annotations

import threading

import pytest

from dagster_jet.system import background_thread
from dagster_jet.system.background_thread import BackgroundThread


class Fails(BackgroundThread):
    """Once."""

    looks = 0

    def __init__(self) -> None:
        super().__init__("fails")
        self.again = threading.Event()

    def _watch(self) -> None:
        self.looks += 1
        if self.looks == 1:
            raise ValueError("a value of tomorrow")
        self.again.set()
        self._ended.wait()


def test_a_watcher_that_fails_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_thread, "_PAUSE_S", 0.0)
    with Fails() as watcher:
        assert watcher.again.wait(10)
