"""The batch sizer aims at a duration."""

import random

import pytest

from dagster_jet.execution.batch_size import FIRST_ROWS, BatchSizer


def run(sizer: BatchSizer, duration_ms, epochs: int = 60) -> None:
    for _ in range(epochs):
        sizer.learn(sizer.rows, duration_ms(sizer.rows))


def test_it_starts_small_and_grows_at_most_twofold():
    sizer = BatchSizer(target_ms=500, max_rows=1_000_000)
    assert sizer.rows == FIRST_ROWS
    sizer.learn(rows=10_000, duration_ms=10)
    assert sizer.rows == 20_000


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_it_finds_the_size_that_takes_the_target(noise):
    rng = random.Random(1)
    sizer = BatchSizer(target_ms=500, max_rows=10_000_000)
    run(sizer, lambda rows: (100 + rows / 1000) * (1 + rng.uniform(-noise, noise)))
    assert 250_000 < sizer.rows < 650_000


def test_where_fixed_cost_exceeds_the_target_epochs_stay_worth_their_cost():
    sizer = BatchSizer(target_ms=500, max_rows=10_000_000)
    run(sizer, lambda rows: 800 + rows / 1000)
    assert sizer.rows > 400_000, "half of an epoch at the most is overhead"


def test_where_rows_cost_nothing_it_takes_all_it_may():
    sizer = BatchSizer(target_ms=500, max_rows=1_000_000)
    run(sizer, lambda rows: 700)
    assert sizer.rows == 1_000_000


def test_a_small_epoch_says_little_and_changes_nothing():
    sizer = BatchSizer(target_ms=500, max_rows=1_000_000)
    sizer.learn(rows=10, duration_ms=100)
    assert sizer.rows == FIRST_ROWS


def test_it_shrinks_when_epochs_take_too_long_and_keeps_to_the_limit():
    sizer = BatchSizer(target_ms=500, max_rows=15_000)
    sizer.learn(10_000, duration_ms=100)
    assert sizer.rows == 15_000
    run(sizer, lambda rows: rows / 2, epochs=20)
    assert 800 < sizer.rows < 1_300
