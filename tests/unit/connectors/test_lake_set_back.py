"""A lake table comes back older: the next epoch is not committed to it, and a source that has read
more of it fails."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import sources
from dagster_jet.errors import Reaction, SinkError, SourceError

from . import delta_table, iceberg_table
from .delta_table import by, rows, stage
from .iceberg_rows import NAME, options_at


def copied(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


@pytest.mark.parametrize("kind", ["catalog of Iceberg", "log of Delta Lake"])
def test_a_table_that_comes_back_older_is_not_written_on(tmp_path: Path, kind: str) -> None:
    is_delta = "Delta" in kind
    table: Any = (delta_table if is_delta else iceberg_table).Table(tmp_path)
    place = tmp_path / ("table/_delta_log" if is_delta else "catalog.db")
    sink = table.sink()
    first, second, third = (stage(sink, rows(n), epoch=n) for n in (1, 2, 3))
    with closing(sink.open_committer("j", "out")) as committer:
        committer.commit(first, by())
        copied(place, tmp_path / "copy")
        committer.commit(second, by())
    with closing(sink.open_committer("j", "out")) as committer:
        assert committer.has_committed(second, replace(by(), owns_job=True))
        copied(tmp_path / "copy", place)
        with pytest.raises(SinkError, match="lacks epochs that this execution") as raised:
            committer.commit(third, by())
    assert raised.value.reaction is Reaction.RESTART
    assert table.ids() == [1]
    with closing(sink.open_committer("j", "out")) as starting:
        assert not starting.has_committed(second, replace(by(2), owns_job=True))


def test_it_comes_back_between_two_commits(tmp_path: Path) -> None:
    table = iceberg_table.Table(tmp_path)
    sink = table.sink()
    first, second, third = (stage(sink, rows(n), epoch=n) for n in (1, 2, 3))
    with closing(sink.open_committer("j", "out")) as committer:
        committer.commit(first, by())
        shutil.copy(tmp_path / "catalog.db", tmp_path / "copy")
        committer.commit(second, by())
        shutil.copy(tmp_path / "copy", tmp_path / "catalog.db")
        with pytest.raises(SinkError, match="lacks epochs that this execution"):
            committer.commit(third, by())
    assert table.ids() == [1]


# --- sources ---


class Read:
    """A table, and the source that reads it."""

    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        self.folder, self.is_delta = folder, kind == "delta"
        self.table: Any = (delta_table if self.is_delta else iceberg_table).Table(folder)
        place: Any = options_at(folder)
        if self.is_delta:
            self.source: Any = sources.delta(str(self.table.folder), **options)
        else:
            self.source = sources.iceberg("lake", NAME, catalog_options=place, **options)

    def reader(self, position: Any = None) -> Any:
        made = self.source.at_start("j", "in", on_one_host=True).open("j", "in", None)
        if position is not None:
            made.restore(json.loads(json.dumps(position)), None)
        return made

    @property
    def place(self) -> Path:
        return self.folder / ("table/_delta_log" if self.is_delta else "catalog.db")

    def append(self, *ids: int) -> None:
        for id in ids:
            self.table.append(id)


def files(reader: Any) -> int:
    """Reads what there is, and returns the number of files."""
    reader.accept(reader.poll())
    count = 0
    while split := reader.plan(1_000):
        count += len(split)
    return count


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("deletes", ["stop", "skip"])
@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("others", [(), (30,), (30, 40), (30, 40, 50)])
def test_a_source_of_a_table_that_comes_back_older(
    tmp_path: Path, kind: str, deletes: str, is_running: bool, others: tuple[int, ...]
) -> None:
    """Failed before: the rows of versions whose numbers had been read were left out."""
    read = Read(tmp_path, kind, deletes=deletes)
    read.append(1, 2)
    copied(read.place, tmp_path / "copy")
    read.append(3, 4)
    running = read.reader()
    assert files(running) == 4
    position = running.position()
    copied(tmp_path / "copy", read.place)
    read.append(*others)
    reader = running if is_running else read.reader(position)
    if is_running and len(others) == 2:  # the library sees no other version, nor does SQLite
        assert files(reader) == 0
        read.append(50)
    with pytest.raises(SourceError, match=r"came back as an older copy.*job of another name"):
        reader.poll()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_position_that_was_saved_without_the_newest_version(tmp_path: Path, kind: str) -> None:
    read = Read(tmp_path, kind)
    read.append(1, 2)
    copied(read.place, tmp_path / "copy")
    read.append(3)
    reader = read.reader()
    assert files(reader) == 3
    position = reader.position()
    number, id = position.pop("head")
    assert number == 3
    if kind == "iceberg":
        position["snapshot"] = id
    read.append(4)
    assert files(read.reader(position)) == 1
    copied(tmp_path / "copy", read.place)
    with pytest.raises(SourceError, match="came back as an older copy"):
        read.reader(position).poll()
    if kind == "iceberg":
        read.append(30, 40)
        with pytest.raises(SourceError, match="was set back to before"):
            read.reader(position).poll()


def test_a_source_that_waits_for_a_version(tmp_path: Path) -> None:
    read = Read(tmp_path, "delta", start=3)
    read.append(1)
    reader = read.reader()
    assert files(reader) == files(reader) == 0
    position = reader.position()
    for old in (position, {n: value for n, value in position.items() if n != "head"}):
        assert files(read.reader(old)) == 0
    read.append(2, 3)
    assert files(read.reader(position)) == files(reader) == 1


def test_a_version_that_was_read_and_has_left_the_log(tmp_path: Path) -> None:
    read = Read(tmp_path, "delta")
    read.append(1, 2)
    reader = read.reader()
    assert files(reader) == 2
    read.append(3)
    read.table.now.create_checkpoint()
    for version in (0, 1, 2):
        (read.place / f"{version:020d}.json").unlink()
    assert files(read.reader(reader.position())) == files(reader) == 1
