"""Rows as dicts: one new dict per row, whatever the columns are called."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dagster_jet.errors import JetError
from dagster_jet.operators.user.python_rows import (
    OutputMismatchError,
    OutputRows,
    row_dicts,
    strict_array,
)


def test_names_may_hold_anything() -> None:
    names = ["it's", '"quoted"', "a\\b\n", "class", "{value_0}", "ä"]
    table = pa.table([[number, None] for number in range(len(names))], names)
    assert list(row_dicts(table)) == [
        dict(zip(names, range(len(names)), strict=True)),
        dict.fromkeys(names),
    ]


def test_every_row_is_a_dict_of_its_own() -> None:
    first, second = row_dicts(pa.table({"a": [1, 1]}))
    first["a"] = 2
    assert second == {"a": 1}


def test_without_columns_there_is_nothing_to_hand_over() -> None:
    assert list(row_dicts(pa.table({"a": [1]}).select([]))) == []


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.list_(pa.timestamp("us"))], ids=str
)
def test_a_time_that_python_does_not_have_names_its_column(kind: pa.DataType) -> None:
    years = pa.array([0, 253_402_300_800_000_000]).cast(pa.timestamp("us"))
    column = pa.ListArray.from_arrays([0, 2], years) if pa.types.is_list(kind) else years.cast(kind)
    with pytest.raises(JetError, match="the column 'at' has a date or time that Python does not"):
        list(row_dicts(pa.table({"n": [1] * len(column), "at": column})))


INTEGERS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "a list": (pa.list_(pa.int32()), [1, None], [1.5]),
    "a struct": (pa.struct([("x", pa.int64())]), {"x": 1}, {"x": 1.5}),
    "a struct from a tuple": (pa.struct([("x", pa.int64())]), (1,), (1.5,)),
    "the keys of a map": (pa.map_(pa.int32(), pa.string()), {1: "a"}, {1.5: "a"}),
    "the values of a map": (pa.map_(pa.string(), pa.int32()), [("a", 1)], [("a", 1.5)]),
    "a list of structs": (pa.list_(pa.struct([("x", pa.int8())])), [{"x": 1}, None], [{"x": 1.5}]),
    "the top": (pa.int64(), 1, 1.5),
}


@pytest.mark.parametrize(("kind", "whole", "fraction"), INTEGERS.values(), ids=INTEGERS)
def test_a_fraction_is_no_integer(kind: pa.DataType, whole: Any, fraction: Any) -> None:
    field = pa.field("v", kind)
    assert strict_array([whole, None], field).null_count == 1
    with pytest.raises(TypeError, match="expected an integer, got a float"):
        strict_array([whole, fraction], field)


LATE = datetime(2026, 7, 15, 23, 30, tzinfo=timezone(timedelta(hours=-5)))
UTC_TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("kind", "good", "bad", "why"),
    [
        (pa.date32(), date(2026, 7, 15), LATE, "expected a date, got a datetime"),
        (pa.date32(), date(2026, 7, 15), 20_649, "expected a date, got an int"),
        (UTC_TIME, LATE, 1_784_000_000_000, "expected a datetime, got an int"),
        (UTC_TIME, LATE, 1.5, "expected a datetime, got a float"),
        (pa.timestamp("us"), np.datetime64("2026-07-15", "us"), 7, "expected a datetime"),
        (pa.float32(), 1.5, 1e300, "too large for a float"),
        (pa.float32(), float("inf"), np.float64(-1e39), "too large for a float"),
        (pa.list_(pa.date32()), [date(2026, 7, 15), None], [LATE], "expected a date"),
        (
            pa.struct([("x", pa.float32())]),
            {"x": float("nan")},
            {"x": 1e39},
            "too large for a float",
        ),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused(
    kind: pa.DataType, good: Any, bad: Any, why: str
) -> None:
    rows = OutputRows(pa.schema([("v", kind)]))
    rows.add([{"v": good}, {"v": None}])
    assert rows.to_table().column("v").null_count == 1
    rows.add({"v": bad})
    with pytest.raises(OutputMismatchError, match=why) as told:
        rows.to_table()
    assert told.value.row == 2


STRICT = pa.field("x", pa.string(), nullable=False)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "why"),
    [
        (pa.struct([("x", pa.string())]), {}, {"x": "a", "typo": 2}, "has no field 'typo'"),
        (pa.struct([STRICT]), {"x": "a"}, {"x": None}, "x: it must not be null"),
        (pa.struct([STRICT]), ("a",), {}, "x: it must not be null"),
        (pa.list_(STRICT), ["a"], ["a", None], "must not be null"),
        (pa.map_(pa.string(), STRICT), {"a": "b"}, {"a": None}, "must not be null"),
        (pa.list_(pa.struct([STRICT])), [{"x": "a"}, None], [{"x": "a", 7: 1}], "no field 7"),
    ],
    ids=str,
)
def test_a_nested_value_is_checked_as_a_row_is(
    kind: pa.DataType, good: Any, bad: Any, why: str
) -> None:
    field = pa.field("v", kind)
    assert strict_array([good, None], field).null_count == 1
    with pytest.raises(TypeError, match=why):
        strict_array([good, bad], field)


def test_other_parts_may_be_fractions() -> None:
    kind = pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))])
    (value,) = strict_array([{"x": 1, "y": [1.5]}], pa.field("v", kind)).to_pylist()
    assert value == {"x": 1, "y": [1.5]}
