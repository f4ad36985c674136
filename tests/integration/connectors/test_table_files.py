"""Tables to enrich with have the rows that a source of the same files has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import tables
from dagster_jet.connectors.files import FilesTable
from dagster_jet.errors import BadRowError, JetError, SourceUnavailableError
from dagster_jet.pipeline.graph import EnrichNode
from dagster_jet.spark.errors import translate
from dagster_jet.spark.tables import EnrichmentTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


@dataclass(frozen=True)
class ReplacedTable(FilesTable):
    """A table whose file another program replaces between its listing and its tasks."""

    sizes: list[int] = field(default_factory=list, compare=False)
    write: Callable[[Path, int], None] = field(default=lambda path, rows: None, compare=False)

    def frame(self, spark: SparkSession) -> DataFrame:
        frame = super().frame(spark)
        if self.sizes:
            replace_by(self.write, next(Path(self.path).parent.rglob("t.*")), self.sizes.pop(0))
        return frame


def replace_by(write: Callable[[Path, int], None], path: Path, rows: int) -> None:
    write(path.parents[1] / "new", rows)
    os.replace(path.parents[1] / "new", path)


def write_csv(path: Path, rows: int) -> None:
    path.write_text("k,v\n" + "".join(f"key-{n},{n}\n" for n in range(rows)))


def write_parquet(path: Path, rows: int) -> None:
    table = pa.table({"k": [f"key-{n}" for n in range(rows)], "v": pa.array(range(rows))})
    pq.write_table(table, path, row_group_size=20)


@pytest.mark.parametrize(
    ("name", "write"),
    [("t.csv", write_csv), ("t.parquet", write_parquet), ("day=7/t.csv", write_csv)],
    ids=["csv", "parquet", "read by Spark"],
)
def test_a_file_that_is_replaced_while_it_is_read(
    spark: SparkSession, tmp_path: Path, name: str, write: Callable[[Path, int], None]
) -> None:
    """Failed before: tasks read the new file up to the size of the old one, which cut off lines,
    and row groups of Parquet, without an error."""
    path = tmp_path / "tables" / name
    path.parent.mkdir(parents=True)
    write(path, 76)
    place = path if path.parent.name == "tables" else path.parents[1]
    sizes: list[int] = []
    format, schema = path.suffix[1:], "k string, v long"
    table = ReplacedTable(str(place), format, schema, sizes=sizes, write=write)
    node = EnrichNode("look", ("in",), table, ("k",), "left")

    def read() -> int:
        enriching = EnrichmentTables(spark, "j", lambda error: translate(error, "j", []))
        return enriching.frame(node, ["k"]).count()

    assert read() == 76
    sizes[:] = [250]
    assert read() == 250
    sizes[:] = [300, 350, 400, 450]
    with pytest.raises(SourceUnavailableError, match=r"'look'.*changed during each of 3 reads"):
        read()
    assert read() == 450 and not sizes


@dataclass(frozen=True)
class FilledTable(FilesTable):
    """A table into which another program writes a file before and after each listing."""

    numbers: Iterator[int] = field(default_factory=count, compare=False)

    def frame(self, spark: SparkSession) -> DataFrame:
        self._add()
        frame = super().frame(spark)
        self._add()
        return frame

    def _add(self) -> None:
        path = Path(self.path)
        write_csv(path.parent / "new", 10)
        os.replace(path.parent / "new", path / f"{next(self.numbers)}.csv")


def test_files_that_come_while_a_table_is_read_are_no_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Failed before: no read of a folder that a stream fills could end."""
    (tmp_path / "table").mkdir()
    table = FilledTable(str(tmp_path / "table"), "csv", "k string, v long")
    node = EnrichNode("look", ("in",), table, ("k",), "left")
    enriching = EnrichmentTables(spark, "j", lambda error: translate(error, "j", []))
    assert enriching.frame(node, ["k"]).count() == 10, "the file that the frame has listed"
