"""Number of a job's restarts, and the pauses before them."""

import time

import pytest

from dagster_jet.jobs.restarts import Restarts


def test_each_pause_is_twice_as_long_up_to_half_a_minute():
    restarts, pauses = Restarts(attempts_max=20), []
    for _ in range(9):
        restarts.failed()
        pauses.append(restarts.pause_ms)
    assert pauses == [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]


@pytest.mark.parametrize("attempts_max", [0, 1, 5])
def test_so_many_are_followed_by_another_execution(attempts_max: int):
    restarts = Restarts(attempts_max)
    for _ in range(attempts_max):
        restarts.failed()
        assert not restarts.exhausted
    restarts.failed()
    assert restarts.exhausted


def test_what_failed_long_before_an_execution_that_got_on_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
):
    restarts, now = Restarts(attempts_max=2), time.monotonic()
    for minutes in (0, 1, 11.5):
        monkeypatch.setattr(time, "monotonic", lambda minutes=minutes: now + 60 * minutes)
        restarts.failed(progressed=True)
    assert restarts.attempts == 1 and not restarts.exhausted
    assert restarts.pause_ms == 500


@pytest.mark.parametrize("minutes_to_fail", [2, 90])
def test_a_failure_that_takes_its_time_counts_as_any_other(
    monkeypatch: pytest.MonkeyPatch, minutes_to_fail: int
):
    restarts, now = Restarts(attempts_max=5), time.monotonic()
    for number in range(6):
        later = now + 60 * minutes_to_fail * number
        monkeypatch.setattr(time, "monotonic", lambda later=later: later)
        assert not restarts.exhausted
        restarts.failed()
    assert restarts.exhausted
