"""The cost of an epoch is estimated from epochs that were measured."""

from __future__ import annotations

import math
import random

import pytest

from dagster_jet.execution.epoch_cost import EpochCost, MeasuredEpochs


def measured(*epochs: tuple[float, float]) -> MeasuredEpochs:
    all_of_them = MeasuredEpochs()
    for rows, ms in epochs:
        all_of_them.add(rows, ms)
    return all_of_them


def test_two_sizes_are_enough():
    cost = measured((10_000, 600), (100_000, 1_500)).cost()
    assert cost is not None
    assert (cost.fixed_ms, cost.row_ms) == (pytest.approx(500), pytest.approx(0.01))
    assert cost.rows_within(2_500) == pytest.approx(200_000)
    assert cost.rows_at(0.1) == pytest.approx(450_000), "4.5 s of rows for half a second"
    assert (cost.bound(700), cost.bound(5_000)) == (pytest.approx(1_000), 5_000)


def test_of_epochs_of_one_size_nobody_knows_what_a_row_costs():
    assert MeasuredEpochs().cost() is None
    assert measured((20_000, 600), (20_000, 650), (21_000, 610)).cost() is None


def test_epochs_that_were_disturbed_do_not_count():
    rng = random.Random(3)
    epochs = [(rows, 500 + rows / 100) for rows in (10_000, 50_000, 100_000, 200_000)]
    disturbed = [(rows, ms * rng.uniform(1.2, 9)) for rows, ms in epochs[1:3] * 3]
    cost = measured(*disturbed[:3], *epochs, *disturbed[3:]).cost()
    assert cost is not None and cost.fixed_ms == pytest.approx(500)


def test_where_larger_ones_were_no_faster_all_time_is_the_rows():
    cost = measured((10_000, 500), (40_000, 2_500)).cost()
    assert cost == EpochCost(0.0, 0.05)


def test_a_job_that_warms_up_does_not_show_that_small_epochs_are_faster():
    """The third epoch is faster because it is the third, as was measured."""
    assert measured((50_000, 5_769), (25_000, 3_063), (29_500, 2_075)).cost() is None


def test_where_rows_cost_nothing_any_number_fits():
    cost = EpochCost(500, 0.0)
    assert cost.rows_within(600) == cost.rows_at(0.1) == math.inf


def test_what_was_long_ago_does_not_count():
    epochs = measured(*[(10_000, 600), (100_000, 1_500)] * 20, *[(10_000, 100), (50_000, 500)] * 5)
    cost = epochs.cost()
    assert cost is not None and cost.fixed_ms == pytest.approx(0)
