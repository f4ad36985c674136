"""Reserving a generation on a real store: one of any number of contenders gets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_jet.errors import StoreMismatchError
from dagster_jet.ownership.supervision import (
    Intent,
    Supervision,
    read_supervision,
    reserve_generation,
    resume,
    set_intent,
)
from dagster_jet.store import Store, StoreConfig


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    return StoreConfig(urls=tuple(f"file://{tmp_path}/{m}" for m in "abc"), backup_count=1)


@pytest.fixture
def store(config: StoreConfig) -> Iterator[Store]:
    with Store.open(config) as store:
        yield store


def reserve(store: Store, expected: int, at_least: int = 1) -> Supervision | None:
    return reserve_generation(
        store,
        "j",
        expected,
        requested_at_ms=1,
        attempts=1,
        execution_id_seen=2,
        snapshot_id_seen=3,
        at_least=at_least,
    )


def test_a_generation_is_reserved_once(store: Store) -> None:
    assert read_supervision(store, "j") is None
    first = reserve(store, expected=0)
    assert first is not None
    assert (first.generation, first.run_key) == (1, "j:1")
    assert read_supervision(store, "j") == first
    assert reserve(store, expected=0) is None, "another tick that had seen the same"
    second = reserve(store, expected=1)
    assert second is not None and second.run_key == "j:2"


def test_contenders_at_one_moment_get_one_generation(config: StoreConfig, store: Store) -> None:
    start = threading.Barrier(6)
    won: list[Supervision] = []

    def contend() -> None:
        with Store.open(config) as own:
            start.wait()
            reserved = reserve(own, expected=0)
            if reserved is not None:
                won.append(reserved)

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [s.generation for s in won] == [1]
    assert read_supervision(store, "j") == won[0]


def test_a_contender_that_died_between_claim_and_write_blocks_nobody(store: Store) -> None:
    store.register("supervision/j").claim(1, "died here")
    reserved = reserve(store, expected=0)
    assert reserved is not None and reserved.generation == 1


def test_a_store_that_knows_less_than_dagster_skips_used_run_keys(store: Store) -> None:
    reserved = reserve(store, expected=0, at_least=7)
    assert reserved is not None and reserved.run_key == "j:7"


def test_a_pause_wins_over_a_reservation_under_way(store: Store) -> None:
    reserve(store, expected=0)
    set_intent(store, "j", Intent.PAUSED)
    assert reserve(store, expected=1) is None
    resumed = set_intent(store, "j", Intent.ALWAYS_ON)
    assert resumed is not None and (resumed.generation, resumed.attempts) == (1, 0)
    assert reserve(store, expected=1) is not None


def test_bytes_round_trip_and_newer_formats_are_refused() -> None:
    value = Supervision("j", 3, 4, "j:3", Intent.PAUSED, Intent.DRAINED, 2, 5, 6, 7, "token", 8)
    assert Supervision.from_bytes(value.to_bytes()) == value
    with pytest.raises(StoreMismatchError, match="format 2"):
        Supervision.from_bytes(replace(value, format=2).to_bytes())


def test_a_schedule_leaves_a_pause_as_it_is(store: Store) -> None:
    set_intent(store, "j", Intent.PAUSED)
    assert set_intent(store, "j", Intent.DRAINED, unless_paused=True) is None
    wanted = read_supervision(store, "j")
    assert wanted is not None and wanted.intent is Intent.PAUSED
    drained = set_intent(store, "j", Intent.DRAINED)
    assert drained is not None and drained.intent is Intent.DRAINED
    assert reserve(store, expected=0) is None, "nobody starts it by itself"


@pytest.mark.parametrize("before", [Intent.ALWAYS_ON, Intent.DRAINED])
def test_who_resumes_wants_what_was_wanted_before_and_says_after_which_execution(
    store: Store, before: Intent
) -> None:
    set_intent(store, "j", before)
    for _ in range(2):
        set_intent(store, "j", Intent.PAUSED)
    resumed = resume(store, "j", 4)
    assert resumed is not None and (resumed.intent, resumed.resumed_execution) == (before, 4)
    again = resume(store, "j", 3)
    assert again is not None and (again.intent, again.resumed_execution) == (before, 4)
