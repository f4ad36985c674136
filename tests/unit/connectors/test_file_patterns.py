"""Files that a pattern, or a folder with its subfolders, names: all of them, or an error."""

from __future__ import annotations

import errno
import glob
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import sources
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.connectors.files.places.local import LocalInput
from dagster_jet.errors import SourceUnavailableError

PARTS = (
    *("*", ".*", "d=*", "d=1", "*.json", "a.json", "?.json", "[!a]*", "[.a]*", "x[[]1]", "x[1]"),
    *("**", "none", "none*", "[", "*[", "link*", "D=*"),
)


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"v": 1}\n')


def test_a_pattern_names_what_a_shell_finds(tmp_path: Path) -> None:
    names = ("a.json", ".h.json", "d=3", "x1", "[", "d=1/a.json", "d=1/.h.json", "d=1/d=1/a.json")
    for name in (*names, "d=2/.d/a.json", ".d/a.json", "x[1]/a.json", "**/a.json", "d=1/x[1]/b"):
        write(tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "d=1")
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    (tmp_path / "link to nothing").symlink_to(tmp_path / "nothing")
    found = 0
    for depth in (1, 2, 3):
        for parts in itertools.product(PARTS, repeat=depth):
            pattern = f"{tmp_path}/{'/'.join(parts)}"
            if glob.has_magic("/".join(parts)) and not os.path.isdir(pattern):
                expected = glob.glob(pattern)
                assert sorted(LocalInput(pattern)._names()) == sorted(expected), pattern
                found += len(expected)
    assert found > 500


READ = ({"path": "day=*/*.json"}, {"path": "*/*/*.json"}, {"path": "", "recursive": True})


def reader_of(folder: Path, read: dict[str, Any]) -> FilesReader:
    path = os.path.join(folder, read["path"])
    source = sources.files(
        path, format="json", schema="v long", recursive=read.get("recursive", False)
    )
    return source.open("j", "in", None)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ENOENT])
def test_a_subfolder_that_cannot_be_read_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: dict[str, Any], number: int
) -> None:
    """Failed before with patterns: its files were gone for a while. A bounded run ended without
    them, and a start took those of its journal for lost."""
    for day in (7, 8):
        write(tmp_path / f"day={day}/{'' if 'day' in read['path'] else 'x/'}a.json")
    reader = reader_of(tmp_path, read)
    reader.accept(reader.poll())
    assert len(reader.plan(100) or ()) == 2
    journal = reader.take_journal()
    assert journal is not None
    again, scandir = reader_of(tmp_path, read), os.scandir

    def fail(path: Any = ".") -> Any:
        if "day=8" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    if number == errno.ENOENT:  # it was removed after its own folder was listed
        (left,) = again.poll().files.unread
        assert left.path.startswith(f"{tmp_path}/day=7/")
        return
    for look in (again.poll, lambda: again.fates(journal.to_pylist())):
        with pytest.raises(SourceUnavailableError, match=os.strerror(number)) as told:
            look()
        assert "day=8" in str(told.value.position)
