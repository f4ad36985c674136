"""The size of rows is known before the first one is read: an epoch's first size follows it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import sources
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.contract import Lag
from dagster_jet.execution.source_polling import poll_now

SCHEMA = "a long, b string"


def reader_of(folder: Path, format: str = "json") -> FilesReader:
    return sources.files(str(folder), format=format, schema=SCHEMA).open("j", "in", None)


def test_lines_are_counted_at_the_beginning_of_the_first_file(tmp_path: Path) -> None:
    line = '{"a": 1, "b": "' + "x" * 984 + '"}\n'
    (tmp_path / "a.json").write_text(line * 500)
    assert poll_now(reader_of(tmp_path)).items == pytest.approx(500, rel=0.02)


def test_parquet_files_say_how_many_rows_they_have_and_how_large_they_become(
    tmp_path: Path,
) -> None:
    table = pa.table({"a": range(50_000), "b": ["the same text in every row"] * 50_000})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    pq.write_table(table, tmp_path / "b.parquet", use_dictionary=False)
    lag = poll_now(reader_of(tmp_path, "parquet"))
    assert lag.items == pytest.approx(100_000, rel=0.01)
    assert lag.bytes is not None and lag.bytes > 30 * 100_000 > 4 * lag.details["bytes"]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "empty.json"])
def test_a_file_that_does_not_show_it_is_waiting_all_the_same(tmp_path: Path, name: str) -> None:
    content = {"a.json": b"x" * 100_000, "a.json.gz": gzip.compress(b"{}\n" * 9), "empty.json": b""}
    (tmp_path / name).write_bytes(content[name])
    assert poll_now(reader_of(tmp_path)).items >= 1


def test_a_damaged_parquet_file_is_left_to_whoever_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet" * 100)
    assert poll_now(reader_of(tmp_path, "parquet")).details == {"files": 1, "bytes": 1_000}


def test_rows_that_were_read_say_more_than_a_look(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n' * 100)
    reader = reader_of(tmp_path)
    poll_now(reader)
    split = reader.plan(100)
    reader.verify(split, rows=9)  # 100 bytes each: the beginning was no good sample
    after = reader_of(tmp_path)
    after.restore(reader.position(), reader.take_journal())
    (tmp_path / "b.json").write_text('{"a": 1}\n' * 1_000)
    assert poll_now(after).items == poll_now(reader).items < 200


def test_a_compressed_file_is_not_opened_at_every_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b"{}"))
    reader = reader_of(tmp_path)

    def opened(*_: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(type(reader._place), "open", opened)
    assert poll_now(reader).items == 1


def test_a_look_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(tmp_path)
    (tmp_path / "a.json").write_text('{"a": 1}\n' * 100)
    assert poll_now(reader) == Lag(100, {"files": 1, "bytes": 900}, 900)

    def no_more(*_: object) -> None:
        raise AssertionError("looked again")

    monkeypatch.setattr("dagster_jet.connectors.files.files_source.row_size", no_more)
    assert poll_now(reader).items == 100
