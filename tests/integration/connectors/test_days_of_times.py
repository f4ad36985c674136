"""Times of Parquet files that are declared as `date`: every way to read them gives the days that
are computed here, or says that a file is bad."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from dagster_jet.connectors.files.parquet_tasks import is_plainly

from .test_same_rows import Read, assert_same, read_all_ways, slice_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAYS = (20_649, 0, -1, -100_000, None)


def days_of_times(folder: Path) -> Read:
    """Writes files of times in every unit and zone. Returns their days, by hand."""
    expected: dict[str, Counter[str]] = {}
    cases = itertools.product(_UNITS, (None, "UTC", "America/New_York", "Asia/Tokyo"), (0, 1, -1))
    for number, (unit, zone, more) in enumerate(cases):
        day = 86_400 * _UNITS[unit]
        for hours in (0, 4):
            path = folder / f"{number}-{hours}.parquet"
            late = more + hours * 3_600 * _UNITS[unit]
            values = [None if d is None else d * day + late * (d == 0) for d in _DAYS]
            table = pa.table({"c0": pa.array(values, pa.timestamp(unit, zone))})
            pq.write_table(table, path, row_group_size=2)
            shown = [None if d is None else date(1970, 1, 1) + timedelta(d) for d in _DAYS]
            days = Counter(f'{{"c0":{json.dumps(d and d.isoformat())}}}' for d in shown)
            expected[str(path)] = Counter(["bad"]) if late else days
    return expected


def test_a_time_is_a_day_at_its_midnight_only(spark: SparkSession, tmp_path: Path) -> None:
    """Failed before: every way lost the time, and a time with a zone became the zone's day."""
    expected = days_of_times(tmp_path)
    found = read_all_ways(spark, tmp_path, random.Random(0), "parquet", "c0 date", {})
    assert_same("c0 date", expected, found, "by hand")
    declared = StructType.fromDDL("c0 date")
    assert not any(is_plainly(slice_of(Path(path)).file, declared) for path in expected)
