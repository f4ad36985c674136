"""Folders named `column=value` are columns of a source of files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from dagster_jet import sources, tables
from dagster_jet.connectors.files.row_frames import Rows
from dagster_jet.contract import BadRowRule
from dagster_jet.core.ddl import split_ddl
from dagster_jet.errors import ConfigurationError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long, Day date, name string, n int"
HEADER = {"header": "true"}


def write_json(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("id,n\n" + "".join(f"{row['id']},{row['n']}\n" for row in rows))


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


WRITE: dict[str, Callable[[Path, list[dict[str, Any]]], None]] = {
    "json": write_json,
    "csv": write_csv,
    "parquet": write_parquet,
}


def fill(folder: Path, format: str) -> None:
    for number, name in enumerate(("a%20b", "__HIVE_DEFAULT_PARTITION__", "ü")):
        inside = folder / f"day=2024-01-0{number + 1}" / f"NAME={name}"
        inside.mkdir(parents=True)
        WRITE[format](inside / f"part.{format}", [{"id": number, "n": 10 * number}])


EXPECTED = [
    (0, date(2024, 1, 1), "a b", 0),
    (1, date(2024, 1, 2), None, 10),
    (2, date(2024, 1, 3), "ü", 20),
]


def found(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


@pytest.mark.parametrize("format", WRITE)
def test_folders_are_columns(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """In a frame of an epoch and in a prepared one, with dead letters, and where few are used."""
    fill(tmp_path, format)
    options = HEADER if format == "csv" else {}
    pattern = f"{tmp_path}/day=*/name=*/*.{format}"
    source = sources.files(pattern.replace("name=", "NAME="), format=format, schema=SCHEMA,
                           options=options)  # fmt: skip
    for rule in (None, BadRowRule(())):
        reader = source.open("job", "rows", rule)
        reader.accept(reader.poll())
        split = reader.plan(100)
        assert split is not None
        assert found(reader.frame(spark, split).rows) == EXPECTED
        prepared = reader.prepared_frame(spark, lambda split=split: split, 1)
        assert prepared is not None and found(prepared.rows) == EXPECTED
    names = [name for name, _ in split_ddl(SCHEMA)]
    for used in ("Day date", "name string, n int", "n int") if format != "csv" else ():
        rows = source.rows
        rows = Rows(rows.path, (), format, SCHEMA, rows.options, StructType.fromDDL(used))
        frame = rows.prepared_frame(spark, lambda split=split: split)
        assert frame is not None
        wanted = [name for name, _ in split_ddl(used)]
        assert found(frame.select(*wanted).na.fill("")) == sorted(
            tuple(row[names.index(n)] if row[names.index(n)] is not None else "" for n in wanted)
            for row in EXPECTED
        )


def test_a_pattern_that_leaves_a_column_out_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "json")
    reader = sources.files(f"{tmp_path}/*/*/*", format="json", schema=SCHEMA).open("j", "s", None)
    reader.accept(reader.poll())
    with pytest.raises(SourceError, match=r"column Day, name is the name of a folder.* Day=\*"):
        reader.plan(100)
    with pytest.raises(ConfigurationError, match=r"multiLine cannot be used .* Day, name"):
        sources.files(
            f"{tmp_path}/day=*/name=*/*",
            format="json",
            schema=SCHEMA,
            options={"multiLine": "true"},
        )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", [(1, "Monday"), (2, "Tuesday")]),
        ("*.json", [(1, "Monday"), (2, "Tuesday")]),
        ("day=*.json", [(1, "Monday"), (2, "Tuesday")]),
        ("day=7", [(3, "7")]),
        ("day=7/*", [(3, "7")]),
        ("*=*/day=*.json", [(3, "Wednesday")]),
        ("day=*/day=*.json", [(3, "7")]),
    ],
)
def test_the_name_of_a_file_is_no_folder(
    spark: SparkSession, tmp_path: Path, path: str, expected: list[tuple[int, str]]
) -> None:
    """Failed before: the job failed, or the column was `9.json`."""
    (tmp_path / "day=7").mkdir()
    write_json(tmp_path / "day=8.json", [{"id": 1, "day": "Monday"}])
    write_json(tmp_path / "day=9.json", [{"id": 2, "day": "Tuesday"}])
    write_json(tmp_path / "day=7" / "day=6.json", [{"id": 3, "day": "Wednesday"}])
    place = f"{tmp_path}/{path}".rstrip("/")
    source = sources.files(place, format="json", schema="id long, day string")
    reader = source.open("job", "rows", None)
    reader.accept(reader.poll())
    if path.startswith("*="):
        with pytest.raises(SourceError, match="column day is the name of a folder"):
            reader.plan(100)
        return
    split = reader.plan(100)
    assert split is not None
    assert found(reader.frame(spark, split).rows) == expected


def test_a_table_of_one_file_has_the_columns_of_its_folders(
    spark: SparkSession, tmp_path: Path
) -> None:
    inside = tmp_path / "day=7"
    inside.mkdir()
    write_json(inside / "name=a.json", [{"id": 3, "name": "Ada", "day": "Wednesday"}])
    schema = "id long, name string, day string"
    for path in (inside, inside / "name=a.json"):
        table = tables.files(str(path), format="json", schema=schema)
        assert found(table.frame(spark)) == [(3, "Ada", "7")]
    (tmp_path / "copy.json").write_text((inside / "name=a.json").read_text())
    (tmp_path / "day=9.json").write_text((inside / "name=a.json").read_text())
    for name in ("copy.json", "day=9.json"):
        table = tables.files(f"{tmp_path}/{name}", format="json", schema=schema)
        assert found(table.frame(spark)) == [(3, "Ada", "Wednesday")]
        inferred = tables.files(f"{tmp_path}/{name}", format="json").frame(spark)
        assert found(inferred.select("id", "name", "day")) == [(3, "Ada", "Wednesday")]


def test_the_first_parquet_file_tells_the_other_columns(tmp_path: Path) -> None:
    fill(tmp_path, "parquet")
    source = sources.files(f"{tmp_path}/day=*/NAME=*/*", format="parquet")
    source = source.at_start("job", "rows", on_one_host=True)
    assert source.schema == "`id` bigint, `n` bigint, `day` string, `NAME` string"
    reader = source.open("job", "rows", None)
    reader.accept(reader.poll())
    assert reader.plan(100), "all files have the same columns"


def test_a_folder_that_does_not_fit_is_a_bad_file(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, "json")
    inside = tmp_path / "day=soon" / "NAME=x"
    inside.mkdir(parents=True)
    write_json(inside / "part.json", [{"id": 1, "n": 1}])
    source = sources.files(f"{tmp_path}/day=*/NAME=*/*", format="json", schema=SCHEMA)
    reader = source.open("job", "rows", BadRowRule(()))
    reader.accept(reader.poll())
    split = reader.plan(100)
    assert split is not None
    frame = reader.frame(spark, split)
    assert found(frame.rows) == EXPECTED and frame.dead_letters is not None
    (letter,) = frame.dead_letters.collect()
    assert letter.position == str(inside / "part.json") and "Day=soon does not fit" in letter.reason
