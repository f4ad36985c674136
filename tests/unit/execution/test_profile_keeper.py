"""The profile of an execution in the store is recent, bounded, and never in the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.core.phases import Phase
from dagster_jet.errors import StoreMismatchError, StoreUnavailableError
from dagster_jet.observe.writing.kept_value import kept_values
from dagster_jet.observe.writing.profile_keeper import (
    KEEP_EVERY_S,
    ProfileKeeper,
    read_timings,
)
from dagster_jet.observe.writing.recent_timings import TIMINGS_MAX, RecentTimings, Timing
from dagster_jet.store import Store, StoreConfig


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    members = tuple(f"file://{tmp_path}/{name}" for name in "ab")
    with Store.open(StoreConfig(members, backup_count=1)) as store:
        yield store


class Kept:
    """A keeper and its clock."""

    def __init__(self, store: Any, execution_id: int = 1) -> None:
        self.now, self.timings = 0.0, RecentTimings()
        self.keeper = ProfileKeeper(
            store, "shop", execution_id, self.timings, lambda: self.now, lambda: 1_234
        )

    def epochs(self, *numbers: int) -> None:
        for number in numbers:
            self.timings.add_epoch(Timing(number, 10, {(Phase.ACTION, ""): 5.0}))
            self.keeper.keep_if_due()


def kept_epochs(store: Store) -> tuple[int, list[int]]:
    found = read_timings(store, "shop")
    assert found is not None
    execution_id, timings, written_at_ms = found
    assert written_at_ms == 1_234 and timings.first is not None
    return execution_id, [timing.number for timing in (timings.first, *timings.epochs)]


def test_the_first_epoch_is_kept_at_once_the_next_ones_every_few_seconds(store: Store) -> None:
    kept = Kept(store)
    kept.epochs(1, 2, 3)
    kept.keeper._worker.close()
    assert kept_epochs(store) == (1, [1])


def test_a_job_that_idles_keeps_its_last_epochs_too(store: Store) -> None:
    kept = Kept(store)
    kept.epochs(1, 2)
    kept.now += KEEP_EVERY_S
    kept.keeper.keep_if_due()
    kept.keeper._worker.close()
    assert kept_epochs(store) == (1, [1, 2])


def test_the_end_keeps_what_is_new_and_one_value_is_left(store: Store) -> None:
    kept = Kept(store)
    for number in range(1, 6):
        kept.now += KEEP_EVERY_S
        kept.epochs(number)
    kept.epochs(6)
    kept.keeper.close()
    assert kept_epochs(store) == (1, [1, 2, 3, 4, 5, 6])
    assert len(kept_values(store, "shop", "profile").keys("")) == 1
    assert store.verify().is_whole


def test_the_newest_execution_counts_and_removes_what_others_left(store: Store) -> None:
    for execution_id in (9, 10):
        kept = Kept(store, execution_id)
        kept.epochs(execution_id)
        kept.keeper.close()
    assert kept_epochs(store) == (10, [10])
    late = Kept(store, 9)  # an older execution that has slept
    late.epochs(11)
    late.keeper.close()
    assert kept_epochs(store) == (10, [10])


def test_nothing_was_measured(store: Store) -> None:
    Kept(store).keeper.close()
    assert read_timings(store, "shop") is None


def test_a_store_that_does_not_answer_fails_no_job() -> None:
    class Away:
        def map(self, name: str) -> Any:
            raise StoreUnavailableError("nobody is there.")

    kept = Kept(Away())
    kept.epochs(1)
    kept.now += KEEP_EVERY_S
    kept.epochs(2)
    kept.keeper.close()


def test_what_an_outage_has_left_is_removed_by_the_next_write(store: Store) -> None:
    class Flaky:
        """Its second removal fails."""

        removals = 0

        def map(self, name: str) -> Any:
            return FlakyMap(store.map(name))

    class FlakyMap:
        def __init__(self, map: Any) -> None:
            self.key, self.keys, self.put_all = map.key, map.keys, map.put_all
            self._delete_all = map.delete_all

        def delete_all(self, keys: Any) -> None:
            Flaky.removals += 1
            if Flaky.removals == 2:
                raise StoreUnavailableError("nobody is there.")
            self._delete_all(keys)

    kept = Kept(Flaky())
    for number in (1, 2, 3):
        kept.now += KEEP_EVERY_S
        kept.epochs(number)
    kept.keeper.close()
    assert Flaky.removals == 3
    assert kept_epochs(store) == (1, [1, 2, 3])
    assert len(kept_values(store, "shop", "profile").keys("")) == 1


@pytest.mark.parametrize("stages", [1, 50, 300])
def test_what_is_kept_is_bounded(stages: int) -> None:
    timings = RecentTimings()
    for number in range(10 * TIMINGS_MAX):
        timing = Timing(number, 10**9)
        for stage in range(stages):
            timing.add(Phase.STEP, 12_345.67, f"stage-{stage}")
        timings.add_epoch(timing)
        timings.add_snapshot(timing)
    data = timings.to_bytes(0)
    assert len(data) < 150_000
    again, _ = RecentTimings.from_bytes(data, "shop")
    assert len(again.epochs) == max(10, min(TIMINGS_MAX, 6_000 // stages))
    assert again.epochs[-1].number == 10 * TIMINGS_MAX - 1
    assert again.epochs[-1].ms[Phase.STEP, "stage-0"] == 12_345.7


def test_what_a_newer_version_has_kept_is_refused() -> None:
    data = RecentTimings().to_bytes(0).replace(b'"format":1', b'"format":2')
    with pytest.raises(StoreMismatchError, match="Upgrade"):
        RecentTimings.from_bytes(data, "shop")
