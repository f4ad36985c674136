"""Time that the soak waits on a machine with other load."""

from __future__ import annotations

import os
import time

import pytest

from tests.soak.patience import Waiting


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: found[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 0.0, 0.0))
    return found


@pytest.mark.parametrize(("load", "lasts"), [(1.0, True), (40.0, False)])
def test_of_a_shared_machine_our_share_counts(
    monkeypatch: pytest.MonkeyPatch, now: list[float], load: float, lasts: bool
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    waiting = Waiting(60)
    looks = []
    for now[0] in range(0, 101, 5):
        looks.append(waiting.has_lasted())
    assert looks[-1] is lasts and waiting.slowest == max(1, load / 2)
    waiting.progress()
    assert not waiting.has_lasted()


def test_the_time_in_which_the_soak_was_stopped_does_not_count(now: list[float]) -> None:
    """SIGSTOP, or a machine that sleeps: the job was given none of it, either."""
    waiting = Waiting(60)
    now[0] = 3_600
    assert not waiting.has_lasted()
    for _ in range(60):
        now[0] += 1
        lasts = waiting.has_lasted()
    assert lasts
