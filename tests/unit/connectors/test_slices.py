"""Files that are too large for an epoch: cut by byte ranges, every row read once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from dagster_jet import sources
from dagster_jet.connectors.files import slices
from dagster_jet.connectors.files.files_source import FilesReader, FilesSource
from dagster_jet.connectors.files.parquet_footer import row_groups
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.text_lines import blocks
from dagster_jet.contract import InputFate
from dagster_jet.errors import SourceError
from dagster_jet.execution.source_polling import poll_now

LINES = [b'{"a": %d, "t": "%s"}\n' % (n, b"x" * (n % 50)) for n in range(2_000)]
ROWS = 100
"""Rows per epoch."""


@pytest.fixture(autouse=True)
def small_files_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_LEAST_BYTES_TO_CUT", 1_000)
    monkeypatch.setattr(slices, "_LEAST_BYTES", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/large.json").write_bytes(b"".join(LINES))
    return tmp_path / "in"


def reader_of(folder: Path, format: str = "json", **given: Any) -> FilesReader:
    source = sources.files(str(folder), format=format, schema="a long, t string", **given)
    assert isinstance(source, FilesSource)
    return source.open("j", "in", None)


def next_parts(reader: FilesReader) -> tuple[Slice, ...]:
    poll_now(reader)
    return reader.plan(ROWS) or ()


def lines_of(part: Slice) -> list[bytes]:
    with open(part.path, "rb") as file:
        return [
            line
            for block in blocks(file, part.begin, part.end)
            for line in block.splitlines(keepends=True)
        ]


def test_every_line_is_in_one_part(folder: Path) -> None:
    reader, read, epochs = reader_of(folder), Counter[bytes](), 0
    while parts := next_parts(reader):
        epochs += 1
        own = [line for part in parts for line in lines_of(part)]
        assert len(own) < 3 * ROWS
        reader.verify(parts, len(own))
        read.update(own)
    assert epochs > 10
    assert read == Counter(LINES)


@pytest.mark.parametrize("snapshot_after", [1, 3, 8])
@pytest.mark.parametrize("rows_afterwards", [10, 450])
def test_a_restored_reader_goes_on_where_the_snapshot_was(
    folder: Path, snapshot_after: int, rows_afterwards: int
) -> None:
    before, read = reader_of(folder), Counter[bytes]()
    for _ in range(snapshot_after):
        read.update(line for part in next_parts(before) for line in lines_of(part))
    position, journal = before.position(), before.take_journal()
    next_parts(before)  # read, and in no snapshot
    after = reader_of(folder)
    after.restore(position, journal)
    while poll_now(after).items:
        read.update(line for part in after.plan(rows_afterwards) or () for line in lines_of(part))
    assert read == Counter(LINES)


def test_small_files_around_a_large_one_are_read_whole_and_together(folder: Path) -> None:
    for number in range(4):
        (folder / f"small-{number}.json").write_bytes(LINES[number])
    reader, whole = reader_of(folder), []
    while parts := next_parts(reader):
        assert len(parts) == 1 or all(part.is_whole for part in parts)
        whole += [Path(part.path).name for part in parts if part.is_whole]
    assert whole == [f"small-{number}.json" for number in range(4)]


@pytest.mark.parametrize(
    "given", [{"options": {"multiLine": "true"}}, {"options": {"encoding": "UTF-16"}}]
)
def test_what_only_sparks_readers_understand_is_not_cut(folder: Path, given: Any) -> None:
    (part,) = next_parts(reader_of(folder, **given))
    assert part.is_whole


def test_compressed_text_is_not_cut(folder: Path) -> None:
    (folder / "large.json").rename(folder / "large.json.gz")
    (part,) = next_parts(reader_of(folder))
    assert part.is_whole


def test_parquet_is_cut_between_row_groups(tmp_path: Path) -> None:
    table = pa.table({"a": range(2_000), "t": [line.decode() for line in LINES]})
    pyarrow.parquet.write_table(table, tmp_path / "large.parquet", row_group_size=70)
    with open(tmp_path / "large.parquet", "rb") as file:
        begins = row_groups(file)
    reader, parts = reader_of(tmp_path, "parquet"), []
    while planned := next_parts(reader):
        parts += planned
    assert len(parts) > 3
    assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert {part.begin for part in parts[1:]} <= set(begins)
    assert parts[0].begin == 0 and parts[-1].end == parts[-1].file.size


def test_parquet_of_one_row_group_is_not_cut(tmp_path: Path) -> None:
    table = pa.table({"a": range(2_000), "t": [line.decode() for line in LINES]})
    pyarrow.parquet.write_table(table, tmp_path / "large.parquet")
    (part,) = next_parts(reader_of(tmp_path, "parquet"))
    assert part.is_whole


def test_what_is_no_parquet_is_left_to_who_reads_it(folder: Path) -> None:
    (part,) = next_parts(reader_of(folder, "parquet"))
    assert part.is_whole


def test_a_file_that_changes_between_two_parts_is_an_error(folder: Path) -> None:
    reader = reader_of(folder)
    parts = next_parts(reader)
    reader.verify(parts, ROWS)
    reader.take_journal()
    with open(folder / "large.json", "ab") as file:
        file.write(LINES[0])
    with pytest.raises(SourceError, match="has changed since"):
        next_parts(reader)


def test_another_time_alone_loses_no_part(folder: Path) -> None:
    reader, read = reader_of(folder), Counter[bytes]()
    for _ in range(3):
        read.update(line for part in next_parts(reader) for line in lines_of(part))
    position, journal = reader.position(), reader.take_journal()
    (folder / "large.json").touch()
    reader = reader_of(folder)
    reader.restore(position, journal)
    while parts := next_parts(reader):
        read.update(line for part in parts for line in lines_of(part))
    assert read == Counter(LINES)


def test_notes_of_parts_are_judged_by_how_far_the_snapshot_has_read(folder: Path) -> None:
    before = reader_of(folder)
    next_parts(before)
    first = before.take_journal()
    position = before.position()
    next_parts(before)
    second = before.take_journal()
    assert first is not None and second is not None
    after = reader_of(folder)
    after.restore(position, first)
    notes = [*first.to_pylist(), *second.to_pylist()]
    assert after.fates(notes) == [InputFate.RESTORED, InputFate.WAITING]
    (folder / "large.json").unlink()
    assert after.fates(notes) == [InputFate.RESTORED, InputFate.GONE]
