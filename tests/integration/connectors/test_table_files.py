"""Tables to enrich with have the rows that a source of the same files has."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import tables
from dagster_jet.errors import BadRowError, JetError
from dagster_jet.spark.errors import translate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(spark: SparkSession, path: Path, format: Any, schema: str | None = None) -> list[Any]:
    frame = tables.files(str(path), format=format, schema=schema).frame(spark)
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize("schema", ["k string, v long", None], ids=["declared", "found"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_all_objects_of_a_line(
    spark: SparkSession, tmp_path: Path, schema: str | None, is_folder: bool
) -> None:
    text = '{"k": "a", "v": 1}{"k": "b", "v": 2}\r{"k": "c", "v": 3} {"v": 4, "k": "d"}'
    (tmp_path / "t.json").write_text(text)
    (tmp_path / "_other.json").write_text("no row")
    path = tmp_path if is_folder else tmp_path / "t.json"
    expected = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert rows(spark, path, "json", schema) == expected


def test_columns_that_only_a_later_object_has(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"k": "a"}{"k": "b", "v": 2}')
    assert rows(spark, tmp_path, "json") == [("a", None), ("b", 2)]


def test_what_is_left_in_a_line_is_a_bad_row(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"k": "a"},{"k": "b"}')
    for schema in ("k string", None):
        with pytest.raises(Exception) as told:
            rows(spark, tmp_path, "json", schema)
        assert isinstance(translate(told.value, "job", []), BadRowError), schema


def test_lines_of_csv(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"k,v\ra,1\r\r\nb,2")
    for schema in ("k string, v int", None):
        assert rows(spark, tmp_path, "csv", schema) == [("a", 1), ("b", 2)], schema


@pytest.mark.parametrize("schema", ["k string, v long", None], ids=["declared", "found"])
def test_columns_of_parquet(spark: SparkSession, tmp_path: Path, schema: str | None) -> None:
    pq.write_table(pa.table({"k": ["a"], "v": [1]}), tmp_path / "1.parquet")
    others = pa.table({"V": pa.array([2], pa.int32()), "K": ["b"]})
    pq.write_table(others, tmp_path / "2.parquet")
    if schema is None:
        with pytest.raises(JetError, match=r"2.parquet.*the columns of the file lack: k, v"):
            rows(spark, tmp_path, "parquet")
        (tmp_path / "2.parquet").unlink()
        assert rows(spark, tmp_path, "parquet") == [("a", 1)]
    else:
        assert rows(spark, tmp_path, "parquet", schema) == [("a", 1), ("b", 2)]


def test_subfolders_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Folder names are columns as Spark writes and reads them; the checks above on lines do not
    hold there."""
    (tmp_path / "day=7").mkdir()
    (tmp_path / "day=7" / "t.json").write_text('{"k": "a"}\n')
    assert rows(spark, tmp_path, "json") == [("a", 7)]


@pytest.mark.parametrize("mode", ["LEGACY", "CORRECTED"])
def test_old_dates_that_spark_wrote(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    days = [date(1, 1, 1), date(900, 2, 28), date(1582, 10, 4), date(1582, 10, 15), None]
    # The year 1 to 2000, with the last days before a date that only one of the calendars has.
    days += [
        date(year, month, day) for year in range(1, 2000, 7) for month, day in ((2, 28), (3, 1))
    ]
    option = "spark.sql.parquet.datetimeRebaseModeInWrite"
    spark.conf.set(option, mode)
    try:
        frame = spark.createDataFrame([(n, day) for n, day in enumerate(days)], "n int, day date")
        frame.coalesce(1).write.parquet(f"{tmp_path}/in")
    finally:
        spark.conf.unset(option)
    assert rows(spark, tmp_path / "in", "parquet") == list(enumerate(days))
    (part,) = (tmp_path / "in").glob("*.parquet")
    stored = pq.read_table(part).column("day").cast(pa.int32())[0].as_py()
    assert stored == (-719_164 if mode == "LEGACY" else -719_162)
