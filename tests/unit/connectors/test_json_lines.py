"""JSON lines column by column: the same rows come back, texts escaped as `json.dumps` does it."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.connectors.values import json_lines

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("small", pa.int8()),
        ("fraction", pa.float64()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ('odd "name"\n', pa.int32()),
    ]
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TIMES = st.integers(-(10**15), 10**15).map(lambda us: _EPOCH + timedelta(microseconds=us))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.none() | st.text(),
            "number": st.none() | st.integers(-(2**63), 2**63 - 1),
            "small": st.none() | st.integers(-128, 127),
            "fraction": st.none() | st.floats(),
            "flag": st.none() | st.booleans(),
            "at": st.none() | TIMES,
            "day": st.none() | st.dates(),
            'odd "name"\n': st.none() | st.integers(-(2**31), 2**31 - 1),
        }
    ),
    min_size=1,
    max_size=20,
)


def lines_of(batch: pa.RecordBatch) -> list[str]:
    text = bytes(json_lines.encode(batch)).decode()
    assert text.endswith("\n")
    return text[:-1].split("\n")


def as_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return value.isoformat() if isinstance(value, date) else value


@given(ROWS, st.integers(0, 3))
def test_every_row_is_a_line_that_reads_back(rows: list[dict[str, Any]], skipped: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA).slice(skipped)
    expected = [{name: as_json(v) for name, v in row.items()} for row in rows[skipped:]]
    if expected:
        found = [json.loads(line) for line in lines_of(batch)]
        assert found == expected
        assert [list(row) for row in found] == [SCHEMA.names] * len(found)
        for line, row in zip(lines_of(batch), expected, strict=True):
            text = json.dumps(row["text"], ensure_ascii=False)
            assert line.lower().startswith('{"text":' + text.lower() + ',"number":')


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.0"), (-0.0, "-0.0"), (0.1, "0.1"), (1e22, "1e+22"), (5e-324, "5e-324")],
)
def test_a_fraction_is_read_back_as_one(value: float, text: str) -> None:
    (line,) = lines_of(pa.RecordBatch.from_pydict({"x": pa.array([value], pa.float64())}))
    assert line == f'{{"x":{text}}}'
    assert isinstance(json.loads(line)["x"], float)


def test_a_time_without_zone_is_written_without_one() -> None:
    times = pa.array([1], pa.timestamp("us"))
    assert lines_of(pa.record_batch({"at": times})) == ['{"at":"1970-01-01T00:00:00.000001"}']


ODD_YEARS = {
    -62_167_219_200_000_001: "-0001-12-31T23:59:59.999999",
    -62_167_219_200_000_000: "0000-01-01T00:00:00.000000",
    253_402_300_800_000_000: "+10000-01-01T00:00:00.000000",
    971_890_963_200_000_000: "+32768-01-01T00:00:00.000000",
    -9_000_000_000_000_000_000: "-283229-05-10T08:00:00.000000",
    9_000_000_000_000_000_000: "+287168-08-24T16:00:00.000000",
}
"""Microseconds since 1970, and as to_json of Spark 4.3 writes them."""


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_years_of_other_than_four_digits_are_written_as_spark_does(zone: str | None) -> None:
    numbers = [*ODD_YEARS, None, 0]
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp("us", zone))
    end = "" if zone is None else "Z"
    texts = [*(text + end for text in ODD_YEARS.values()), "1970-01-01T00:00:00.000000" + end]
    found = [json.loads(line) for line in lines_of(pa.record_batch({"at": times}))]
    assert [row["at"] for row in found if row["at"] is not None] == texts
    assert found[len(ODD_YEARS)] == {"at": None}

    days = pa.array([-719_529, 0, None, 2_932_897, 13_890_172, -50_000_000], pa.int32())
    found = [json.loads(line) for line in lines_of(pa.record_batch({"d": days.cast(pa.date32())}))]
    assert [row["d"] for row in found] == [
        *("-0001-12-31", "1970-01-01", None),
        *("+10000-01-01", "+40000-01-01", "-134926-08-26"),
    ]


def test_a_batch_that_several_sinks_write_is_encoded_once() -> None:
    batch, same = (pa.record_batch({"x": [1]}) for _ in range(2))
    text = json_lines.encode(batch)
    assert json_lines.encode(batch) is text
    assert json_lines.encode(same) is not text


@pytest.mark.parametrize("type", [pa.string(), pa.large_string()])
def test_lines_that_spark_has_rendered_are_written_as_they_are(type: pa.DataType) -> None:
    lines = pa.array(['{"a":1}\n', '{"a":"größe"}\n', "{}\n"], type)
    assert bytes(json_lines.text_of(lines)).decode() == "".join(lines.to_pylist())
    assert bytes(json_lines.text_of(lines.slice(1, 1))).decode() == '{"a":"größe"}\n'
    assert bytes(json_lines.text_of(lines.slice(3))) == b""


@pytest.mark.parametrize(
    "type", [pa.binary(), pa.decimal128(9, 2), pa.list_(pa.int32()), pa.float32()]
)
def test_types_whose_text_is_not_certain_are_left_to_spark(type: pa.DataType) -> None:
    assert json_lines.can_encode(SCHEMA)
    assert not json_lines.can_encode(SCHEMA.append(pa.field("x", type)))
