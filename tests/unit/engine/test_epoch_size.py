"""The batch sizer aims at a duration."""

from dagster_jet.engine.batch_size import FIRST_ROWS, BatchSizer


def test_it_starts_small_and_grows_at_most_twofold():
    sizer = BatchSizer(target_ms=500, max_rows=1_000_000)
    assert sizer.rows == FIRST_ROWS
    sizer.learn(rows=10_000, duration_ms=10)
    assert sizer.rows == 20_000


def test_it_finds_the_size_that_takes_the_target():
    sizer = BatchSizer(target_ms=500, max_rows=10_000_000)
    for _ in range(40):
        sizer.learn(sizer.rows, duration_ms=100 + sizer.rows / 1000)
    assert 350_000 < sizer.rows < 450_000


def test_a_small_epoch_says_little_and_changes_nothing():
    sizer = BatchSizer(target_ms=500, max_rows=1_000_000)
    sizer.learn(rows=10, duration_ms=100)
    assert sizer.rows == FIRST_ROWS


def test_it_shrinks_when_epochs_take_too_long_and_keeps_to_the_limit():
    sizer = BatchSizer(target_ms=500, max_rows=15_000)
    sizer.learn(10_000, duration_ms=100)
    assert sizer.rows == 15_000
    sizer.learn(15_000, duration_ms=5_000)
    assert sizer.rows == 7_500
