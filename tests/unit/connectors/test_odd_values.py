"""Values and names that few rows have: none changes, and none is refused too late."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.files.parquet_columns import UnfitError, as_declared
from dagster_jet.connectors.files.writer import RENDERED_COLUMN
from dagster_jet.connectors.lake.added_rows import AddedFile, Piece, ReadPieces, _repeated
from dagster_jet.connectors.lake.staged_changes import ChangesLayout
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.connectors.sql.column_fit import Column, fits
from dagster_jet.connectors.sql.json_values import json_texts
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.refused_values import RefusedValues, refused_row
from dagster_jet.connectors.task_shares import FixedShares
from dagster_jet.errors import SinkMismatchError
from dagster_jet.operators.rows.far_times import python_rows

UTC_US = pa.timestamp("us", "UTC")
FAR = pa.array([253_402_300_800_000_000], pa.int64()).cast(UTC_US)
"""The year 10000."""
CHANGED: dict[str, tuple[pa.Array, pa.DataType]] = {
    "too large for a float": (pa.array([1e300]), pa.float32()),
    "too small for a float": (pa.array([1e-50]), pa.float32()),
    "more digits than a decimal": (pa.array([1.239]), pa.decimal128(10, 2)),
    "more digits than a double": (pa.array([Decimal(2**53 + 1)]), pa.float64()),
    "hexadecimal": (pa.array(["12", None, "0X10"]), pa.int64()),
    "a day after 9999": (FAR.cast(pa.int64()).cast(pa.timestamp("s")), pa.date32()),
}
KEPT: dict[str, tuple[pa.Array, pa.DataType, Any]] = {
    "no number": (pa.array([float("nan")]), pa.float32(), "nan"),
    "without an end": (pa.array([float("-inf")]), pa.float32(), "-inf"),
    "half": (pa.array([0.5]), pa.float32(), "0.5"),
    "money": (pa.array([Decimal("12.50")]), pa.float64(), "12.5"),
    "null": (pa.array([None], pa.float64()), pa.float32(), "None"),
}


@pytest.mark.parametrize(("given", "type"), CHANGED.values(), ids=CHANGED)
def test_a_value_that_would_change_is_refused(given: pa.Array, type: pa.DataType) -> None:
    with pytest.raises((UnfitError, pa.ArrowInvalid)):
        as_declared(given, type, "v")


@pytest.mark.parametrize(("given", "type", "expected"), KEPT.values(), ids=KEPT)
def test_a_fraction_that_stays_is_read(given: pa.Array, type: pa.DataType, expected: str) -> None:
    assert str(as_declared(given, type, "v")[0].as_py()) == expected


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_is_a_day_at_its_midnight_in_utc_only(unit: str, zone: str | None) -> None:
    """Failed before: the time was lost, and a time with a zone became the day of the zone."""
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    type = pa.timestamp(unit, zone)
    days = [20_649, None, 0, -1, -100_000]
    midnights = [None if day is None else day * 86_400 * per_second for day in days]
    found = as_declared(pa.array(midnights, type), pa.date32(), "v")
    assert found.cast(pa.int32()).to_pylist() == days
    nested = pa.array([{"v": midnights}], pa.struct([("v", pa.list_(type))]))
    wanted = pa.struct([("v", pa.list_(pa.date32()))])
    assert as_declared(nested, wanted, "v")[0].as_py()["v"] == found.to_pylist()
    for more in (1, -1, 4 * 3_600 * per_second):
        for at in midnights:
            if at is not None:
                with pytest.raises(UnfitError, match="would change"):
                    as_declared(pa.array([None, at + more], type), pa.date32(), "v")


@pytest.mark.parametrize(
    "text", ["2020-01-01 01:02:03", "2020-01-01T01:02:03Z", "2020-01-01 01:02:03+00:00"]
)
def test_a_partition_by_time(text: str) -> None:
    expected = datetime(2020, 1, 1, 1, 2, 3, tzinfo=timezone.utc)
    assert _repeated(text, UTC_US, 2).to_pylist() == [expected, expected]


def test_times_of_96_bits_in_a_table(tmp_path: Path) -> None:
    """Spark's default; Arrow reads them in ns, unless it is told otherwise."""
    times = pa.array([datetime(9999, 12, 31), datetime(1, 1, 1)], pa.timestamp("us"))
    table = pa.table({"t": times})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    read = TableRead("t", str(tmp_path), "earliest", False, (), "t timestamp_ntz")
    size = (tmp_path / "a.parquet").stat().st_size
    piece = Piece(AddedFile(0, 0, "a.parquet", size, 2), 0, None)
    task = ReadPieces(read, FixedShares(((piece,),)), table.schema)
    (batch,) = task([pa.record_batch({"id": pa.array([0])})])
    assert batch.column("t").to_pylist() == times.to_pylist()


def test_json_has_times_that_python_lacks() -> None:
    """Failed before: an OverflowError, in the task or in the commit."""
    days = pa.array([13_890_172, 0, -719_529], pa.int32()).cast(pa.date32())
    times = pa.array([253_402_300_800_000_000, 0, 1]).cast(UTC_US)
    table = pa.StructArray.from_arrays(
        [
            pa.ListArray.from_arrays([0, 1, 2, 3], days),
            pa.MapArray.from_arrays([0, 1, 2, 3], days, times),
        ],
        ["list", "map"],
    )
    assert json_texts(table).to_pylist() == [
        '{"list": ["+40000-01-01"], "map": {"+40000-01-01": "+10000-01-01T00:00:00.000000Z"}}',
        '{"list": ["1970-01-01"], "map": {"1970-01-01": "1970-01-01T00:00:00+00:00"}}',
        '{"list": ["-0001-12-31"], "map": {"-0001-12-31": "1970-01-01T00:00:00.000001+00:00"}}',
    ]
    for shown in ("jsonb", "text"):
        values = RefusedValues("postgresql", {"t": Column("t", "text", shown)})
        assert values.of(pa.record_batch({"t": table})) == {}


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "sqlite"])
@pytest.mark.parametrize(
    "us", [-62_135_596_800_000_000, 9_007_199_254_740_993, 253_402_300_799_999_999]
)
def test_every_microsecond_of_four_digit_years_fits_a_table(dialect: str, us: int) -> None:
    """Failed before: ArrowInvalid from the year 2255 on, whose microseconds no double counts."""
    rows = pa.record_batch({"at": pa.array([us]).cast(UTC_US)})
    values = RefusedValues(dialect, {"at": Column("at", "timestamp", "timestamp")})
    assert values.of(rows) == {}
    before = pa.record_batch({"at": pa.array([-62_135_596_800_000_001]).cast(UTC_US)})
    assert values.of(before) == {0: "at is before the year 1"}


def test_a_partition_of_a_far_day_is_refused() -> None:
    """Failed before: its folder was `day=<value out of range: 13890172>`, or one that no source
    reads."""
    days = pa.array([13_890_172, None, 2_932_896, 2_932_897, -719_163], pa.int32())
    rows = pa.record_batch({"day": days.cast(pa.date32()), "n": pa.array(range(5))})
    sink: Any = sinks.files("/out", format="json", partition_by=["day"])
    found = {number: one.reason for number, one in sink.refused(rows).items()}
    assert list(found) == [0, 3, 4]
    assert all("column day is before the year 1 or after 9999" in why for why in found.values())


def test_no_lake_table_gets_a_partition_of_a_far_day() -> None:
    """Failed before: it was decided, and then the libraries could not commit it or read the log."""
    days = pa.array([13_890_172, None, 2_932_896, 2_932_897, -719_163], pa.int32())
    at = pa.array([0, 0, 253_402_300_800_000_000, 0, 0]).cast(UTC_US)
    rows = pa.record_batch({"day": days.cast(pa.date32()), "at": at})
    delta: Any = sinks.delta("/out", partition_by=["day"])
    iceberg: Any = sinks.iceberg("c", "db.t", partition_by=["day"], catalog_options={"type": "sql"})
    both = replace(iceberg, partition_by=("day", "month(at)"))
    buckets = replace(iceberg, partition_by=("bucket(4, day)",))
    cases = {delta: [0, 3, 4], iceberg: [0, 3, 4], both: [0, 2, 3, 4], buckets: []}
    for sink, numbers in cases.items():
        assert sorted(sink.refused(rows)) == numbers
    changed = rows.append_column("_op", pa.array(["update"] * 5))
    layout = ChangesLayout((), True, "j", "out", partition_by=["day"])
    layout._check_rows(changed.slice(1, 2))
    with pytest.raises(SinkMismatchError, match="partition column day is before the year 1 or"):
        layout._check_rows(changed)


def test_a_column_like_rendered_lines_is_no_line() -> None:
    sink = sinks.files("/out", format="json")
    assert not sink.takes(pa.schema([(RENDERED_COLUMN, pa.string())]))
    assert sink.takes(pa.schema([("text", pa.string())]))


def test_rows_with_times_that_python_lacks_are_shown() -> None:
    """Failed before: a refused row with such a time could not be told, nor one inside a list."""
    days = pa.array([13_890_172], pa.int32()).cast(pa.date32())
    rows = pa.record_batch(
        {
            "t": FAR,
            "n": pa.array([1]),
            "list": pa.ListArray.from_arrays([0, 1], days),
            "struct": pa.StructArray.from_arrays([FAR.cast(pa.timestamp("us")), days], ["a", "b"]),
            "map": pa.MapArray.from_arrays([0, 1], pa.array(["k"]), FAR),
        }
    )
    far, day = "+10000-01-01T00:00:00.000000", "+40000-01-01"
    told: dict[str, Any] = {
        "t": f"{far}Z", "n": 1, "list": [day], "struct": {"a": far, "b": day},
        "map": [["k", f"{far}Z"]],
    }  # fmt: skip
    refused = refused_row(SqlPlace("sqlite:///x.db", "t"), ["t"], rows, 0, "t is too late")
    assert json.loads(refused.raw) == told
    assert python_rows(rows) == [{**told, "map": [("k", f"{far}Z")]}]


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("us"),
        pa.list_(pa.duration("us")),
        pa.struct([("d", pa.duration("us"))]),
        pa.map_(pa.string(), pa.duration("us")),
    ],
    ids=str,
)
def test_an_interval_fits_no_column(kind: pa.DataType) -> None:
    assert not fits(kind, Column("c", "text", "text"))
