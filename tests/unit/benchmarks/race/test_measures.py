"""Rates, percentiles and sweeps."""

from __future__ import annotations

import math

import pytest

from benchmarks.race.measures import (
    best_setting,
    geometric_mean,
    latencies,
    percentile,
    rates,
)


def test_rates_leave_out_what_is_said() -> None:
    found = rates(100.0, [(110.0, 200), (110.5, 300), (111.0, 600), (114.0, 1000)], 1000)
    assert found.first_row_s == 10
    assert found.total == pytest.approx(1000 / 14)
    assert found.steady == pytest.approx(800 / 4)
    assert found.marginal == pytest.approx(400 / 3)


def test_an_answer_in_one_commit_has_no_steady_rate() -> None:
    found = rates(100.0, [(110.0, 1000)], 1000)
    assert found.total == 100
    assert math.isnan(found.steady)


def test_what_little_comes_after_the_first_commit_has_no_rate() -> None:
    found = rates(0.0, [(1.0, 500), (2.0, 760), (3.0, 1000)], 1000)
    assert found.steady == 250
    assert found.marginal == 250
    assert math.isnan(rates(0.0, [(1.0, 760), (2.0, 1000)], 1000).steady)
    # Sentinels come an hour of event time later, which is not a great many events.
    assert math.isnan(rates(0.0, [(1.0, 36_000_000), (2.0, 1000)], 1000).steady)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2
    assert percentile([3.0], 0.5) == 3
    assert math.isnan(percentile([], 0.5))


def test_a_late_emission_counts_from_its_schedule() -> None:
    rows = [(10.0, 9.0), (20.0, 12.0), (21.0, 20.0)]
    assert latencies(rows, 9.0, 20.0) == [1.0, 8.0]


def test_the_best_setting_has_the_highest_rate() -> None:
    assert best_setting({"a": 1.0, "b": 3.0, "c": 3.0}) == "b"
    assert best_setting({"a": math.nan, "b": 1.0}) == "b"
    assert best_setting({"a": math.nan, "b": math.nan}) == "a"


def test_a_ratio_that_was_not_measured_is_not_in_the_mean() -> None:
    assert geometric_mean([2.0, 8.0, math.nan]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))
