"""The clock of an execution: monotonic, and right again in the long run."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from dagster_jet.execution.clock import Clock

HOUR_S = 3600


@dataclass
class Times:
    wall_s: float = 1_000_000.0
    steady_s: float = 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(time, "time", lambda: times.wall_s)
    monkeypatch.setattr(time, "monotonic", lambda: times.steady_s)
    return times


def test_after_a_suspended_machine_it_catches_up(times: Times) -> None:
    clock = Clock(times.wall_s, times.steady_s)
    times.wall_s += HOUR_S  # the machine slept, and its monotonic clock with it
    times.pass_by(60)
    assert clock.now_ms() == (1000 * (1_000_000 + 66)), "a little at a time"
    for _ in range(11 * 60):
        times.pass_by(60)
        now_ms = clock.now_ms()
    assert now_ms == round(1000 * times.wall_s)


def test_a_wall_clock_that_is_a_year_ahead_for_a_minute_does_no_harm(times: Times) -> None:
    clock = Clock(times.wall_s, times.steady_s)
    times.wall_s += 365 * 24 * HOUR_S
    times.pass_by(60)
    before = clock.now_ms()
    times.wall_s -= 365 * 24 * HOUR_S
    times.pass_by(1)
    assert before < clock.now_ms() < 1000 * (times.wall_s + 10), "it never goes back"
    times.pass_by(600)
    assert clock.now_ms() == 1000 * times.wall_s
