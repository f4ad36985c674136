"""CSV for COPY has the same values as the rows; tested without a database."""

from __future__ import annotations

import csv
import io
import struct
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.connectors.sql.row_writer import as_csv


def texts(values: list[Any], kind: pa.DataType) -> list[str]:
    """CSV texts of a column, written beside one that is never empty: an empty line is no row."""
    batch = pa.record_batch({"n": pa.array(range(len(values))), "v": pa.array(values, kind)})
    lines = list(csv.reader(io.StringIO(as_csv(batch).decode())))
    assert [int(line[0]) for line in lines] == list(range(len(values)))
    return [line[1] for line in lines]


@given(st.lists(st.floats(width=64)))
def test_every_bit_of_a_double_is_kept(values: list[float]) -> None:
    back = [float(text) for text in texts(values, pa.float64())]
    for got, given_ in zip(back, values, strict=True):
        assert got == given_ or (got != got and given_ != given_)
        assert struct.pack("d", got)[-1] & 0x80 == struct.pack("d", given_)[-1] & 0x80 or got != got


@given(st.lists(st.floats(width=32)))
def test_a_float_in_a_column_of_doubles_is_the_same_number(values: list[float]) -> None:
    back = [float(text) for text in texts(values, pa.float32())]
    assert all(a == b or (a != a and b != b) for a, b in zip(back, values, strict=True))


@given(st.lists(st.decimals(-(10**19), 10**19, places=18, allow_nan=False)))
def test_decimals_are_exact(values: list[Decimal]) -> None:
    assert [Decimal(text) for text in texts(values, pa.decimal128(38, 18))] == values


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
@given(values=st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))))
def test_times_are_told_in_utc(zone: str | None, values: list[datetime]) -> None:
    told = texts(
        [value if zone is None else value.replace(tzinfo=timezone.utc) for value in values],
        pa.timestamp("us", zone),
    )
    ending = "" if zone is None else "Z"
    assert told == [f"{value.isoformat(' ', 'microseconds')}{ending}" for value in values]


def test_nothing_is_not_an_empty_text() -> None:
    batch = pa.record_batch({"a": [1, 2, 3], "b": [None, "", 'a "b",\nc']})
    assert as_csv(batch) == b'1,\n2,""\n3,"a ""b"",\nc"\n'
    empty = pa.record_batch(
        {"a": pa.array([None, 1.5]), "b": pa.array([None, datetime(2024, 1, 2)])}
    )
    assert as_csv(empty) == b',\n"1.5","2024-01-02 00:00:00.000000"\n'
