"""Fail points of a worker that drivers use in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_jet.system import failpoint
from dagster_jet.system.failpoint import FailPointError, Orders, fail_point


@pytest.fixture(autouse=True)
def without_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("JET_FAIL_POINTS", raising=False)
    failpoint.configure("")
    yield
    failpoint.configure("")


def raises(name: str) -> bool:
    try:
        fail_point(name)
    except FailPointError:
        return True
    return False


def test_a_driver_hands_on_what_its_environment_says_and_who_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert failpoint.for_tasks() is None
    failpoint.configure("a=raise")
    assert failpoint.for_tasks() is None, "rules of this process alone"
    monkeypatch.setenv("JET_FAIL_POINTS", "a=kill")
    monkeypatch.setenv("JET_FAIL_POINT_LOG", "/some.log")
    orders = failpoint.for_tasks()
    assert orders == Orders("a=kill", "/some.log", os.getpid())
    assert Orders.from_json(orders.to_json()) == orders


def test_hits_are_counted_from_task_to_task_and_anew_for_another_driver() -> None:
    first, second = Orders("a:2=raise", driver=1), Orders("a:2=raise", driver=2)
    failpoint.obey(first)
    assert not raises("a")
    failpoint.obey(first)
    assert raises("a"), "the second task of the same driver"
    failpoint.obey(first)
    assert not raises("a")
    failpoint.obey(second)
    assert [raises("a"), raises("a")] == [False, True]


def test_without_orders_the_environment_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failpoint.obey(Orders("a=raise", driver=1))
    failpoint.obey(None)
    assert not raises("a")
    monkeypatch.setenv("JET_FAIL_POINTS", "b=raise")
    failpoint.obey(None)
    assert raises("b")


def test_what_was_acted_upon_is_in_the_log_of_the_orders(tmp_path: Path) -> None:
    log = tmp_path / "reached.log"
    failpoint.obey(Orders("a=raise", str(log), 1))
    assert raises("a") and not raises("b")
    assert log.read_text("utf-8") == f"a=raise@{os.getpid()}\n"
