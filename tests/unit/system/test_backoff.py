"""Pauses between attempts stay within their bounds, and are nobody else's numbers."""

from __future__ import annotations

import random
import time

import pytest

from dagster_jet.system.backoff import Backoff, attempts, give_way


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def test_pauses_stay_within_bounds_that_double(pauses: list[float]) -> None:
    assert list(attempts(6, base_s=0.1, cap_s=0.5)) == [0, 1, 2, 3, 4, 5]
    bounds = [0.1, 0.2, 0.4, 0.5, 0.5]
    assert len(pauses) == len(bounds)
    assert all(0 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))


def test_a_call_that_is_tried_until_it_succeeds_waits_ever_longer() -> None:
    backoff = Backoff(first_s=1, max_s=5)
    waits = [backoff.next_s() for _ in range(5)]
    assert all(b / 2 <= w <= b for b, w in zip([1, 2, 4, 5, 5], waits, strict=True)), waits


def test_a_program_that_has_seeded_its_numbers_gets_those(pauses: list[float]) -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    list(attempts(3))
    give_way(0)
    Backoff(1, 2).next_s()
    assert random.random() == expected


def test_processes_that_were_seeded_alike_do_not_wait_in_step(pauses: list[float]) -> None:
    for _ in range(2):
        random.seed(7)
        list(attempts(5))
    assert pauses[:4] != pauses[4:]
