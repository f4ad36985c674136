"""Sources of files: subfolders, columns about files, and what becomes of files that were read."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import sinks, sources
from dagster_jet.connectors.files import input_cleaning
from dagster_jet.connectors.files.files_source import CleaningReader, FilesReader
from dagster_jet.contract import Acknowledges
from dagster_jet.errors import ConfigurationError, SourceError, SourceUnavailableError
from dagster_jet.execution.source_polling import poll_now

from .s3_folder import S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server


def opened(path: Path | str, **options: Any) -> Any:
    return sources.files(str(path), format="json", schema="a long", **options).open("j", "in", None)


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"a": 1}\n')


def read_all(reader: FilesReader) -> set[str]:
    """Plans all that waits, as one epoch, which is in a snapshot."""
    poll_now(reader)
    taken = reader.plan(10**6) or ()
    reader.take_journal()
    return {part.path for part in taken}


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- subfolders -----------------------------------------------------------------------------------

INSIDE = ("0.json", "a/1.json", "a/b/2.json", "x=1/3.json", "a/x=draft.tmp/4.json", "x=.crc/5.json")
HIDDEN = ("_epochs/4.json", "a/.staging/5.json", "a/_6.json", "a/7.tmp", "a/x=1.tmp", "_x=1/8.json")
TEMPORARY = ("b.tmp/9.json", "a/b._COPYING_/9.json")


def test_subfolders_are_read_if_asked(tmp_path: Path) -> None:
    put(tmp_path, *INSIDE, *HIDDEN, *TEMPORARY)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_all(opened(tmp_path, recursive=True)) == {f"{tmp_path}/{n}" for n in INSIDE}
    assert read_all(opened(tmp_path)) == {f"{tmp_path}/0.json"}


def test_a_subfolder_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, *INSIDE)
    scandir = os.scandir

    def denied(path: Any) -> Any:
        if str(path).endswith("/a/b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    source = sources.files(str(tmp_path), format="json", schema="a long", recursive=True)
    reader = FilesReader(source, "j", "in", None)
    with pytest.raises(SourceUnavailableError, match="Permission denied"):
        reader.poll()


def test_a_sink_below_is_the_sources_own_input(tmp_path: Path) -> None:
    source = sources.files(str(tmp_path), format="json", schema="a long", recursive=True)
    inside, outside = ("out", "a/out", "a/x=1.tmp"), (".hidden/out", "../o", "a/out.tmp")
    for path, is_so in (*((p, True) for p in inside), *((p, False) for p in outside)):
        assert source.reads_output_of(sinks.files(f"{tmp_path}/{path}", format="json")) is is_so


def test_folders_as_columns_need_a_pattern(tmp_path: Path) -> None:
    put(tmp_path, "a=1/0.json")
    with pytest.raises(SourceError, match=r"the name of a folder.* a=\* in place of"):
        read_all(opened(tmp_path, recursive=True))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"path": "/in/*", "recursive": True}, "is a pattern"),
        ({"metadata": ["path"]}, "'path' is unknown"),
        ({"metadata": ["file_path", "file_path"]}, "two columns"),
        ({"metadata": ["file_name"], "schema": "FILE_NAME string"}, "two columns file_name"),
        ({"path": "/in/file_name=*/*", "schema": "file_name string"}, "two columns file_name"),
        ({"after_commit": "move"}, "'move' is unknown"),
        ({"after_commit": "delete", "format": "parquet", "schema": None}, "needs schema="),
        ({"after_commit": "archive"}, "does not fit"),
        ({"after_commit": "delete", "archive": "/a"}, "does not fit"),
        ({"archive": "/a"}, "does not fit"),
        ({"after_commit": "archive", "archive": "s3://b/a"}, "same file system"),
        ({"after_commit": "archive", "archive": "/in"}, "the source reads"),
        ({"after_commit": "archive", "archive": "/in/a", "recursive": True}, "the source reads"),
        ({"metadata": ["file_name"], "options": {"multiLine": "true"}}, "not in the files"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        sources.files(**{"path": "/in", "format": "json", "schema": "a long", **options})


# --- cleaning -------------------------------------------------------------------------------------


def test_files_go_once_they_are_acknowledged(tmp_path: Path) -> None:
    put(tmp_path / "in", "0.json", "a/1.json")
    put(tmp_path / "done", "a/1.json")
    archive = {"after_commit": "archive", "archive": f"{tmp_path}/done"}
    reader = opened(tmp_path / "in", recursive=True, **archive)
    assert isinstance(reader, CleaningReader) and reader.acknowledges is Acknowledges.MESSAGES
    assert opened(tmp_path / "in").acknowledges is Acknowledges.NOTHING
    poll_now(reader)
    assert reader.unacknowledged() == {}, "nothing was read"
    read_all(reader)
    files = reader.unacknowledged()
    assert len(files) == 2 and left(tmp_path / "in") == {"0.json", "a/1.json"}
    put(tmp_path / "in", "later.json")
    mtime = next(mtime for path, (mtime, *_) in files.items() if path.endswith("1.json"))
    for _ in range(2):  # again, after a crash
        reader.acknowledge(files)
        assert left(tmp_path / "in") == {"later.json"}
        assert left(tmp_path / "done") == {"0.json", "a/1.json", f"a/1.json.{mtime}"}
    assert read_all(reader) == {f"{tmp_path}/in/later.json"}
    assert [Path(path).name for path in reader.unacknowledged()] == ["later.json"]


def test_a_file_that_was_replaced_stays(tmp_path: Path) -> None:
    put(tmp_path, "0.json", "1.json")
    reader = opened(tmp_path, after_commit="delete")
    read_all(reader)
    files = reader.unacknowledged()
    (tmp_path / "new").write_text('{"a": 2}\n')
    os.utime(tmp_path / "new", ns=(1, 1))
    (tmp_path / "new").rename(tmp_path / "1.json")
    reader.acknowledge(files)
    assert left(tmp_path) == {"1.json"}


def test_a_part_of_a_file_is_not_the_file(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text('{"a": 1}\n' * (1 << 21))
    reader = opened(tmp_path, after_commit="delete")
    poll_now(reader)
    [part] = reader.plan(1_000_000)
    assert part.end < part.file.size and reader.unacknowledged() == {}
    while reader.plan(1_000_000):
        pass
    assert list(reader.unacknowledged()) == [f"{tmp_path}/0.json"]


def test_the_next_execution_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that was not removed, or that was read before removal was configured, is not read
    again."""
    put(tmp_path, "0.json", "1.json", "2.json")
    first = opened(tmp_path)
    read_all(first)
    position, journal = first.position(), first.whole_journal(range(64), ())
    put(tmp_path, "3.json")
    second = opened(tmp_path, after_commit="delete")
    second.restore(position, journal)
    assert read_all(second) == {f"{tmp_path}/3.json"}
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(Path, "unlink", denied)
        second.acknowledge(second.unacknowledged())
    assert len(left(tmp_path)) == 4
    [warning] = [r.getMessage() for r in caplog.records if "cleaned up" in r.getMessage()]
    assert "job 'j', stage 'in'" in warning and "Permission denied" in warning
    second.acknowledge(second.unacknowledged())
    assert left(tmp_path) == set()


def denied(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_full_folder_is_cleaned_by_and_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_cleaning, "_AT_ONCE", 2)
    put(tmp_path, *(f"{n}.json" for n in range(5)))
    reader = opened(tmp_path, after_commit="delete")
    for count in (5, 3, 1):
        assert len(left(tmp_path)) == count
        read_all(reader)
        reader.acknowledge(reader.unacknowledged())
    assert left(tmp_path) == set()


def test_an_archive_on_another_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in", "0.json")
    archive = {"after_commit": "archive", "archive": f"{tmp_path}/done"}
    source = sources.files(f"{tmp_path}/in", format="json", schema="a long", **archive)
    source.at_start("j", "in", on_one_host=True)
    assert (tmp_path / "done").is_dir()
    stat = os.stat

    def elsewhere(path: Any, *args: Any, **options: Any) -> os.stat_result:
        found = stat(path, *args, **options)
        fields = list(found)
        fields[2] += str(path).endswith("/done")
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", elsewhere)
    with pytest.raises(ConfigurationError, match="another file system"):
        source.at_start("j", "in", on_one_host=True)


def test_in_a_bucket(s3: S3Folder) -> None:
    for name in ("in/0.json", "in/x=a.tmp/1.json", "in/_b/2.json"):
        s3.put(name, '{"a": 1}\n')
    options = {"storage_options": s3.storage_options, "recursive": True}
    archive = {"after_commit": "archive", "archive": f"{s3.url}/done"}
    reader = opened(f"{s3.url}/in", **options, **archive)
    assert read_all(reader) == {f"{s3.url}/in/0.json", f"{s3.url}/in/x=a.tmp/1.json"}
    files = reader.unacknowledged()
    s3.put("in/0.json", '{"a": 2}\n')
    reader.acknowledge(files)
    assert set(s3.every_name()) == {"in/0.json", "in/_b/2.json", "done/x=a.tmp/1.json"}
    assert s3.get("done/x=a.tmp/1.json") == b'{"a": 1}\n'
    deleting = opened(f"{s3.url}/in", after_commit="delete", **options)
    read_all(deleting)
    deleting.acknowledge(deleting.unacknowledged())
    assert "in/0.json" not in s3.every_name()
