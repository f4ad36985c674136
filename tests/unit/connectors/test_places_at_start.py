"""Checks of files connectors before an execution: who reaches a folder, which columns it has."""

from __future__ import annotations

import datetime
import decimal
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import sinks, sources, tables
from dagster_jet.connectors.files.files_source import FilesReader, FilesSource
from dagster_jet.contract import BadRowRule
from dagster_jet.errors import ConfigurationError, SourceError

BUILDS = [
    lambda place, **more: sources.files(place, format="json", schema="a long", **more),
    lambda place, **more: tables.files(place, **more),
    lambda place, **more: sinks.files(place, format="json", **more),
]


@pytest.mark.parametrize("build", BUILDS)
def test_a_folder_of_one_machine_is_refused_on_a_cluster(tmp_path: Path, build: Any) -> None:
    local, shared = build(f"{tmp_path}"), build(f"{tmp_path}", shared=True)
    bucket = build("s3://bucket/folder")
    assert local.at_start("j", "out", on_one_host=True) == local
    with pytest.raises(ConfigurationError, match=r"is a folder of this machine.*shared=True"):
        local.at_start("j", "out", on_one_host=False)
    for reachable in (shared, bucket):
        assert reachable.at_start("j", "out", on_one_host=False) == reachable
    assert local == shared, "no other place"


def started(folder: Path) -> FilesSource:
    source: FilesSource = sources.files(f"{folder}", format="parquet").at_start(
        "j", "in", on_one_host=True
    )
    return source


def reader_of(source: FilesSource) -> FilesReader:
    reader = source.open("j", "in", None)
    reader.accept(reader.poll())
    return reader


def test_parquet_files_say_their_columns(tmp_path: Path) -> None:
    row = {
        "id": pa.scalar(1, pa.uint32()),
        "my name": pa.scalar("x").cast(pa.dictionary(pa.int8(), pa.string())),
        "at": pa.scalar(datetime.datetime(2024, 1, 1), pa.timestamp("ns", tz="UTC")),
        "price": pa.scalar(decimal.Decimal("1.50")),
        "tags": pa.scalar(["a"]),
    }
    table = pa.table({name: pa.array([v.as_py()], v.type) for name, v in row.items()})
    pq.write_table(table, tmp_path / "a.parquet")
    source = started(tmp_path)
    assert source.schema == (
        "`id` bigint, `my name` string, `at` timestamp, `price` decimal(3,2), `tags` array<string>"
    )
    assert source == started(tmp_path)
    assert reader_of(source).plan(10) is not None


def test_without_a_file_or_a_folder_a_schema_is_needed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            ConfigurationError, match=r"has no Parquet file yet .* Give column names"
        ):
            started(folder)
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(ConfigurationError, match=r"a\.parquet' cannot be read"):
        started(tmp_path)


def test_a_damaged_file_is_left_to_the_dead_letters(tmp_path: Path) -> None:
    """Failed before: the job ended in spite of `dead_letter_to`, and no start took the columns of
    the next file."""
    (tmp_path / "1.parquet").write_text("no parquet")
    os.utime(tmp_path / "1.parquet", ns=(1, 1))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "2.parquet")
    source = started(tmp_path)
    assert source.schema == "`a` bigint"
    reader = source.open("j", "in", BadRowRule(()))
    reader.accept(reader.poll())
    taken = [Path(part.path).name for part in reader.plan(10**6) or ()]
    assert taken == ["1.parquet", "2.parquet"]
    with pytest.raises(SourceError, match="cannot be read") as told:
        reader_of(source).plan(10**6)
    assert told.value.position == str(tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "3.parquet")
    reader.accept(reader.poll())
    with pytest.raises(SourceError, match="lack: a"):
        reader.plan(10**6)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (pa.table({"a": [1], "b": ["x"], "c": [1.0]}), r"have besides: c"),
        (pa.table({"a": [1]}), r"lack: b"),
        (pa.table({"a": ["1"], "b": ["x"]}), r"are of another type: a string"),
    ],
)
def test_files_that_differ_are_named(tmp_path: Path, second: pa.Table, said: str) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.parquet")
    source = started(tmp_path)
    pq.write_table(pa.table({"b": ["x"], "a": [1]}), tmp_path / "2.parquet")
    assert reader_of(source).plan(10**6) is not None, "in another order they are the same"
    pq.write_table(second, tmp_path / "3.parquet")
    with pytest.raises(SourceError, match=said) as told:
        reader_of(source).plan(10**6)
    assert told.value.position == str(tmp_path / "3.parquet") and told.value.cure
