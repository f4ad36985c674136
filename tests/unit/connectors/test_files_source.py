"""The files source without Spark: what is listed, and what is remembered of it."""

from __future__ import annotations

import errno
import logging
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import sinks, sources, tables
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.connectors.files.input_folder import FEW_FILES
from dagster_jet.connectors.files.memory import FileMemory
from dagster_jet.connectors.files.places.local import LocalInput
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.errors import (
    ConfigurationError,
    InputLostError,
    Reaction,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.execution.source_polling import poll_now


def reader_of(path: str | Path) -> FilesReader:
    return sources.files(str(path), format="json", schema="a long").open("j", "in", None)


def write_rows(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text('{"a": 1}\n')


def take_all(reader: FilesReader) -> list[str]:
    poll_now(reader)
    return [Path(file.path).name for file in reader.plan(10**6) or ()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, whose own name is a pattern, with two files in `in`."""
    folder = tmp_path / "run [1]"
    write_rows(folder / "in", "0.json", "1.json")
    monkeypatch.chdir(folder)
    return folder


SPELLINGS = ["in", "./in", "in/", "../run [1]/in", "in/*.json", "{here}/in", "{here}/in/"]


@pytest.mark.parametrize("then", SPELLINGS)
@pytest.mark.parametrize("now", SPELLINGS)
def test_a_file_is_the_same_however_the_source_spells_its_folder(
    here: Path, then: str, now: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = reader_of(then.format(here=here))
    assert take_all(before) == ["0.json", "1.json"]
    after = reader_of(now.format(here=here))
    after.restore(before.position(), before.take_journal())
    assert poll_now(after).items == 0
    write_rows(here / "in", "2.json")
    assert take_all(after) == ["2.json"]
    assert after.position()["files"] == 3
    assert not [one for one in caplog.records if one.name.startswith("dagster_jet.connectors")]


def snapshot_with(path: Path) -> tuple[dict[str, Any], pa.Table]:
    """Snapshot with a file whose checksum could not be read."""
    found = os.stat(path)
    file = InputFile(found.st_mtime_ns, str(path), found.st_size)
    return {"files": 1, "bytes_per_row": 9.0}, FileMemory(0).as_table([file])


def joined(*journals: pa.Table | None) -> pa.Table:
    """Joins journals as a chain is read back, the newest first."""
    return pa.concat_tables([j for j in journals if j is not None], promote_options="default")


def test_a_snapshot_whose_rows_do_not_fit_its_position_is_refused(here: Path) -> None:
    _, journal = snapshot_with(here / "in/0.json")
    with pytest.raises(SourceError, match="lists 1 files read, its position 2"):
        reader_of("in").restore({"files": 2, "bytes_per_row": 9.0}, journal)


def test_a_folder_that_was_never_read_from_is_told(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = reader_of("in")
    take_all(before)
    position, journal = before.position(), before.take_journal()
    (here / "in").rename(here / "moved")
    with caplog.at_level(logging.WARNING):
        after = reader_of("moved")
        after.restore(position, journal)
    assert take_all(after) == ["0.json", "1.json"]  # a new folder is legitimate
    (told,) = caplog.records
    assert "job 'j', stage 'in'" in told.getMessage() and str(here / "moved") in told.getMessage()
    # The cure that it names.
    (here / "in").symlink_to(here / "moved")
    linked = reader_of("in")
    linked.restore(position, journal)
    assert poll_now(linked).items == 0


def test_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    write_rows(tmp_path / "in[1]", "a.json")
    write_rows(tmp_path / "in1", "b.json")
    assert take_all(reader_of(tmp_path / "in[1]")) == ["a.json"]
    assert take_all(reader_of(f"{tmp_path}/in[1]/*.json")) == ["b.json"]


PLACES = [
    lambda place: sources.files(place, format="parquet"),
    lambda place: tables.files(place),
    lambda place: sinks.files(place, format="json"),
]


@pytest.mark.parametrize("build", PLACES)
@pytest.mark.parametrize(
    "place",
    [
        *("s3:/bucket/in", "s3://", "s3://b/../in", "ftp://host/in", "HTTPS://host/in"),
        *("file://host/in", "~/in", "~nobody/in", "file://~/in", "", "a\0b"),
    ],
)
def test_places_that_are_not_here_are_refused(build: Any, place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^path: ") as told:
        build(place)
    assert repr(place) in str(told.value) and told.value.cure


@pytest.mark.parametrize("build", PLACES)
def test_paths_are_those_of_the_folder_in_which_the_pipeline_is_built(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any
) -> None:
    spelled = [
        "in",
        "./in/",
        f"{here}/in",
        f"file://{here}/in",
        f"file:{here}/in".replace(" ", "%20"),
    ]
    built = [build(place) for place in spelled]
    monkeypatch.chdir(tmp_path)
    assert {one.path for one in built} == {str(here / "in")}
    assert build("./~in").path == str(tmp_path / "~in")


def test_subfolders_are_passed_over_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path, "a.json")
    write_rows(tmp_path / "date=2024-01-01", "b.json")
    write_rows(tmp_path / "_epochs", "c.json")
    reader = reader_of(tmp_path)
    assert take_all(reader) == ["a.json"] and poll_now(reader).items == 0
    (told,) = caplog.messages
    assert "1 subfolders" in told and str(tmp_path / "date=2024-01-01") in told
    assert f"({tmp_path}/date=*/*.json)" in told, "the cure that it names"
    assert {"b.json"} <= set(take_all(reader_of(f"{tmp_path}/date=*/*.json")))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("call", ["scandir", "stat"])
@pytest.mark.parametrize("pattern", ["", "/*.json"])
def test_a_file_system_that_cannot_be_read_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str, pattern: str
) -> None:
    write_rows(tmp_path, "a.json")
    reader = reader_of(f"{tmp_path}{pattern}")
    poll_now(reader)
    split = reader.plan(100)
    assert split is not None

    def fail(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(SourceUnavailableError) as told:
            poll_now(reader)
        reader_of(f"{tmp_path}{pattern}")  # `poll` is to tell, where the job can wait
        if call == "stat":
            with pytest.raises(SourceUnavailableError):
                reader.verify(split, 1)
    assert told.value.reaction is Reaction.RETRY
    for part in ("job 'j', stage 'in'", str(tmp_path), os.strerror(number), "permissions"):
        assert part in str(told.value)
    assert poll_now(reader).items == 0


@pytest.mark.parametrize("name", [b"caf\xe9.json", b"caf\xe9/a.json"])
def test_a_name_that_is_not_utf8_is_refused_and_named(tmp_path: Path, name: bytes) -> None:
    """Failed before with an error of Arrow, when the journal was written, that named no file."""
    path = os.fsencode(tmp_path) + b"/" + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write('{"a": 1}\n')
    source = sources.files(str(tmp_path), format="json", schema="a long", recursive=True)
    with pytest.raises(SourceError, match=r"caf\\xe9.* is not UTF-8. Rename it") as told:
        take_all(source.open("j", "in", None))
    assert "job 'j', stage 'in'" in str(told.value).encode().decode()
    os.rename(path, tmp_path / "a.json")
    assert take_all(source.open("j", "in", None)) == ["a.json"]


# --- input that changes, and input that goes ------------------------------------------------------

NOW_NS = 1_800_000_000_123_456_789


def test_another_time_is_no_other_file_and_other_content_is(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_rows(tmp_path, "a.json", "b.json")
    first = reader_of(tmp_path)
    take_all(first)
    journal = first.take_journal()
    os.utime(file, ns=(NOW_NS, NOW_NS))  # touch
    assert poll_now(first).items == 0
    touched = first.take_journal()
    assert touched is not None and touched["path"].to_pylist() == [str(file)]

    file.unlink()
    write_rows(tmp_path, "a.json")  # put back from a copy, before another start
    second = reader_of(tmp_path)
    second.restore(first.position(), joined(touched, journal))
    assert poll_now(second).items == 0
    assert poll_now(second).items == 0 and second.take_journal().num_rows == 1, "compared once"

    for content in ('{"a": 2}\n', '{"a": 1}\n{"a": 2}\n'):
        file.write_text(content)
        for reader in (first, second):
            with pytest.raises(SourceError, match=r"read with 9 bytes and has changed") as told:
                poll_now(reader)
            assert told.value.position == str(file) and "into a file of their own" in str(
                told.value
            )


def test_the_state_of_many_read_files_is_not_asked_for_in_each_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def find(place: LocalInput, path: str) -> InputFile | None:
        asked.append(path)
        return found(place, path)

    found = LocalInput.find
    monkeypatch.setattr(LocalInput, "find", find)
    write_rows(tmp_path, *(f"{number}.json" for number in range(FEW_FILES + 1)))
    reader = reader_of(tmp_path)
    assert len(take_all(reader)) == FEW_FILES + 1
    reader._folder._next_full_look = math.inf

    asked.clear()
    write_rows(tmp_path, "new.json")
    (tmp_path / "7.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert take_all(reader) == ["new.json"]
    assert asked.count(str(tmp_path / "7.json")) == 0 and len(asked) < 10

    reader._folder._next_full_look = 0.0
    with pytest.raises(SourceError, match=r"has changed since") as told:
        poll_now(reader)
    assert told.value.position == str(tmp_path / "7.json")


def test_a_snapshot_without_checksums_goes_by_size_and_time(tmp_path: Path) -> None:
    write_rows(tmp_path, "a.json")
    before = os.stat(tmp_path / "a.json").st_mtime_ns
    position, journal = snapshot_with(tmp_path / "a.json")
    reader = reader_of(tmp_path)
    reader.restore(position, journal)
    assert poll_now(reader).items == 0
    os.utime(tmp_path / "a.json", ns=(NOW_NS, NOW_NS))
    with pytest.raises(SourceError, match=r"give it its old time \(touch -d\)"):
        poll_now(reader)
    os.utime(tmp_path / "a.json", ns=(before, before))
    assert poll_now(reader).items == 0


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda file: file.unlink(), InputLostError, "removed .*Put it back"),
        (
            lambda file: os.utime(file, ns=(NOW_NS, NOW_NS)),
            SourceUnavailableError,
            "reads it again",
        ),
        (lambda file: file.write_text("{}"), SourceError, "from 9 to 2 bytes.*do not append"),
    ],
)
def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, change: Any, kind: type[SourceError], said: str
) -> None:
    write_rows(tmp_path, "a.json", "b.json")
    reader = reader_of(tmp_path)
    poll_now(reader)
    split = reader.plan(10**6)
    assert split is not None
    change(tmp_path / "b.json")
    with pytest.raises(kind, match=said) as told:
        reader.verify(split, 2)
    assert type(told.value) is kind and told.value.position == str(tmp_path / "b.json")


def test_twice_as_many_rows_as_a_file_has_are_two_files(tmp_path: Path) -> None:
    """Files of equally many rows differ by some bytes: asked for two, it took one, for ever."""
    for number in range(6):
        rows = (f'{{"a": {10 ** (n % (3 + number % 2))}}}\n' for n in range(1000))
        (tmp_path / f"{number}.json").write_text("".join(rows))
    reader = reader_of(tmp_path)
    poll_now(reader)
    for _ in range(3):
        split = reader.plan(2000)
        assert split is not None and len(split) == 2
        reader.verify(split, 2000)
