"""Sorted, distinct, found: the same as numpy's own, whatever the numbers are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.operators.rows.sorting import dense_codes, distinct, is_among, order_by, search

INT64 = np.iinfo(np.int64)
any_number = st.one_of(
    st.integers(-5, 5), st.integers(INT64.min, INT64.max), st.sampled_from([INT64.min, INT64.max])
)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(st.lists(st.tuples(any_number, any_number)))
def test_order_is_by_columns_then_by_arrival(rows: list[tuple[int, int]]) -> None:
    columns = [column([row[place] for row in rows]) for place in (0, 1)]
    expected = sorted(range(len(rows)), key=lambda number: rows[number])
    assert order_by(*columns).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-50, 50))))
def test_small_numbers_are_packed_and_stay_stable(rows: list[tuple[int, int]]) -> None:
    columns = [column([row[place] for row in rows]) for place in (0, 1)]
    assert order_by(*columns).tolist() == sorted(range(len(rows)), key=lambda n: rows[n])


def test_the_widest_ranges_that_still_fit() -> None:
    wide = column([INT64.max >> 2, 0, (INT64.max >> 2) - 1, 0])  # 61 bits, and 2 of the row
    assert order_by(wide).tolist() == [1, 3, 2, 0]


@given(st.lists(any_number), st.lists(any_number))
def test_distinct_codes_and_membership(values: list[int], others: list[int]) -> None:
    assert distinct(column(values)).tolist() == sorted(set(values))
    place = {value: number for number, value in enumerate(sorted(set(values)))}
    assert dense_codes(column(values)).tolist() == [place[value] for value in values]
    known = distinct(column(others))
    assert search(known, column(values)).tolist() == np.searchsorted(known, values).tolist()
    assert is_among(column(values), known).tolist() == [value in others for value in values]
