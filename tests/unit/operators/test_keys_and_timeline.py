"""Numbering keys, and searching rows by key and time."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.errors import BadRowError
from dagster_jet.operators.lateness import drop_late
from dagster_jet.operators.rows.event_order import Timeline, expand
from dagster_jet.operators.rows.keys import key_codes, null_keys

NAN = float("nan")


def test_equal_keys_have_equal_numbers_across_tables_by_sparks_rules():
    first = pa.table({"f": [0.0, NAN, None, 1.0]})
    second = pa.table({"f": [-0.0, -NAN, None, 2.0]})
    one, other = key_codes(["f"], first, second)
    assert (one == other).tolist() == [True, True, True, False]
    assert len(set(one.tolist())) == 4


def test_columns_are_not_mixed_up():
    (codes,) = key_codes(
        ["a", "b"], pa.table({"a": ["x", None, "x", "xy"], "b": [None, "x", None, "x"]})
    )
    assert codes[0] == codes[2]
    assert len(set(codes.tolist())) == 3


def test_without_rows_and_without_columns():
    empty = pa.table({"a": pa.array([], pa.string())})
    assert [len(codes) for codes in key_codes(["a"], empty, empty)] == [0, 0]
    assert key_codes([], pa.table({"a": ["x", "y"]}))[0].tolist() == [0, 0]


def test_chunks_of_one_column_are_numbered_together():
    table = pa.concat_tables([pa.table({"a": ["x", "y"]}), pa.table({"a": ["y", "x"]})])
    (codes,) = key_codes(["a"], table)
    assert codes.tolist() == [0, 1, 1, 0]


def test_a_null_in_any_key_column():
    table = pa.table({"a": ["x", None, "x"], "b": [None, "x", "x"]})
    assert null_keys(["a", "b"], table).tolist() == [True, True, False]


def test_a_row_without_event_time_is_refused():
    table = pa.table({"__time": pa.array([1, None], pa.int64())})
    with pytest.raises(BadRowError, match="1 of 2 rows have no event time"):
        drop_late(table, None)


def test_times_far_apart_do_not_overflow():
    times = np.array([-(2**60), 0, 2**60])
    line = Timeline(np.arange(3), times)
    start, stop = line.between(np.arange(3), times - 1, times + 1)
    assert (stop - start).tolist() == [1, 1, 1]


rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 20)), max_size=25)


@given(rows=rows, queries=rows, distance=st.integers(0, 8))
def test_between_finds_what_a_scan_finds(rows, queries, distance):
    codes, times = (np.array([r[i] for r in rows], np.int64) for i in (0, 1))
    wanted, at = (np.array([q[i] for q in queries], np.int64) for i in (0, 1))
    line = Timeline(codes, times)
    which, places = expand(*line.between(wanted, at - distance, at + distance))
    found = sorted(zip(which.tolist(), line.order[places].tolist(), strict=True))
    assert found == [
        (q, r)
        for q, (code, time) in enumerate(queries)
        for r, row in enumerate(rows)
        if row[0] == code and abs(row[1] - time) <= distance
    ]


@given(rows=rows, distance=st.integers(0, 8))
def test_spaced_chooses_as_one_row_after_the_other(rows, distance):
    codes, times = (np.array([r[i] for r in rows], np.int64) for i in (0, 1))
    chosen, last = [], {}
    for number in sorted(range(len(rows)), key=lambda n: rows[n]):
        code, time = rows[number]
        if code not in last or time - last[code] > distance:
            last[code] = time
            chosen.append(number)
    assert Timeline(codes, times).spaced(distance).tolist() == chosen


@given(rows=rows, distance=st.integers(0, 8))
def test_apart_chooses_in_the_given_order(rows, distance):
    codes, times = (np.array([r[i] for r in rows], np.int64) for i in (0, 1))
    chosen = []
    for number, (code, time) in enumerate(rows):
        if all(rows[n][0] != code or abs(rows[n][1] - time) > distance for n in chosen):
            chosen.append(number)
    assert Timeline(codes, times).apart(distance).tolist() == chosen
