"""Markers of a folder of output whose readers take its files away."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.files import old_markers
from dagster_jet.connectors.files.old_markers import KEPT, OldMarkers
from dagster_jet.connectors.files.places import location
from dagster_jet.connectors.files.places.local import LocalOutput
from dagster_jet.connectors.files.places.opening import open_output
from dagster_jet.connectors.files.places.place import OutputPlace
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.snapshot.manifest import Artifact
from tests.long import long
from tests.servers.members import AwsServer

from .s3_folder import BUCKET, S3Folder, environment

YEAR = 365 * 24 * 60
"""Epochs of a job that has rows every minute."""


def marker(epoch: int, line: str = "") -> str:
    return f"_epochs/{epoch:010d}{line}.json"


def file(epoch: int) -> str:
    return f"part-{epoch:010d}-0000-1.json"


def markers(place: OutputPlace) -> set[str]:
    return {f"_epochs/{name}" for name in place.names("_epochs/") if name[0] != "."}


@pytest.fixture(params=["file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Any:
    if request.param == "file":
        (tmp_path / "_epochs").mkdir()
        yield open_output(str(tmp_path))
    elif request.param == "memory":
        monkeypatch.setitem(location.SCHEMES, "memory", "memory")
        yield open_output(f"memory://{uuid.uuid4().hex}/out")
    else:
        with AwsServer() as server:
            server.create_bucket(BUCKET)
            for name, value in environment(server):
                monkeypatch.setenv(name, value)
            folder = S3Folder.new(server)
            yield open_output(folder.url, tuple(folder.storage_options.items()))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_markers, "KEPT", 10)


@pytest.mark.usefixtures("few")
def test_what_is_old_and_has_no_files_goes(place: OutputPlace) -> None:
    for epoch in range(1, 31):
        place.create(marker(epoch), "{}")
        place.create(file(epoch), "{}")
    place.create(marker(29, "-line2"), "{}")
    place.create(marker(30, "-line2-7"), "{}")
    place.create("_epochs/.owner", "j/out")
    every = markers(place)
    OldMarkers(1).remove(place, 30, 30)
    assert markers(place) == every, "all files are there"
    place.remove_all([file(epoch) for epoch in range(1, 31) if epoch != 7])
    OldMarkers(1).remove(place, 30, 30)
    newest = {marker(epoch) for epoch in range(21, 31)}
    other = {marker(29, "-line2"), marker(30, "-line2-7")}
    assert markers(place) == {marker(7), *newest, *other}
    assert place.read("_epochs/.owner") == "j/out"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("column", ["day", "_topic", ".day", "part-a"])
def test_files_count_whatever_the_partition_column_is_called(
    place: OutputPlace, column: str
) -> None:
    """Failed before: files below `_topic=a` were never seen."""
    folder = f"{column}=a/day=7"
    if isinstance(place, LocalOutput):
        (place.path / folder).mkdir(parents=True)
    for epoch in range(1, 31):
        place.create(marker(epoch), "{}")
        place.create(f"{folder}/{file(epoch)}", "{}")
    OldMarkers(1).remove(place, 30, 30)
    assert markers(place) == {marker(epoch) for epoch in range(1, 31)}
    place.remove_all([f"{folder}/{file(epoch)}" for epoch in range(1, 31) if epoch != 3])
    OldMarkers(1).remove(place, 30, 30)
    assert markers(place) == {marker(3), *(marker(epoch) for epoch in range(21, 31))}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_folder_that_cannot_be_read_is_not_empty(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: the markers of its files were removed."""
    if kind == "file":
        (tmp_path / "_epochs").mkdir()
        (tmp_path / "day=7").mkdir()
        place, owner, call = open_output(str(tmp_path)), os, "scandir"
    else:
        monkeypatch.setitem(location.SCHEMES, "memory", "memory")
        place = open_output(f"memory://{uuid.uuid4().hex}/out")
        owner, call = type(fsspec.filesystem("memory")), "ls"
    for epoch in range(1, 31):
        place.create(marker(epoch), "{}")
        place.create(f"day=7/{file(epoch)}", "{}")
    listed = getattr(owner, call)

    def fail(*path: Any, **more: Any) -> Any:
        if str(path[-1]).endswith("day=7"):
            raise OSError(errno.ESTALE, "Stale file handle", path[-1])
        return listed(*path, **more)

    monkeypatch.setattr(owner, call, fail)
    with pytest.raises(OSError, match="Stale file handle"):
        OldMarkers(1).remove(place, 30, 30)
    assert markers(place) == {marker(epoch) for epoch in range(1, 31)}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("needed", [0, 15, 40])
def test_what_a_start_may_ask_for_stays(place: OutputPlace, needed: int) -> None:
    epochs = range(2, 62, 2)
    for epoch in epochs:
        place.create(marker(epoch), "{}")
    OldMarkers(1).remove(place, 60, needed)
    newest_before = max((epoch for epoch in epochs if epoch <= needed), default=0)
    stays = {e for e in epochs if e >= newest_before} | set(epochs[-10:])
    assert markers(place) == {marker(epoch) for epoch in stays}


@pytest.mark.usefixtures("few")
def test_a_snapshot_of_many_epochs_is_committed_again_beside_a_reader(tmp_path: Path) -> None:
    """The reader takes away what is listed. The process dies after 25 of 40 epochs, and again
    before it notes that all are committed."""
    sink = sinks.files(str(tmp_path), format="json")
    sink.check("j", "out", is_new_job=True)
    artifacts: list[Artifact] = []
    for epoch in range(1, 41):
        writer = sink.open_writer(TransactionId("j", "out", 1, 1, epoch, 0, "a0"))
        writer.write(pa.record_batch({"v": [epoch]}))
        artifacts += writer.prepare()
    context = CommitContext("j", "out", 1, 1, recovering=True, retained_epoch_id=40)
    taken: list[int] = []
    for until in (25, 40, 40):
        object.__setattr__(sink, "_old_markers", OldMarkers(1))  # of a process
        sink.open_committer("j", "out").commit(artifacts[:until], context)
        for path in sorted(tmp_path.glob("part-*")):
            taken.append(json.loads(path.read_text())["v"])
            path.unlink()
    assert taken == list(range(1, 41))


class Counted:
    """A folder in memory, which counts the names that it lists."""

    def __init__(self) -> None:
        self.there: dict[str, None] = {}
        self.listed = 0

    def names(self, beginning: str) -> Any:
        for name in self.there:
            if name.startswith(beginning):
                self.listed += 1
                yield name.rpartition("/")[2]

    def published(self) -> Any:
        return self.names("part-")

    def remove_all(self, names: Any) -> None:
        for name in names:
            self.there.pop(name, None)


def run(epochs: int, left: Callable[[int], int | None], restart_every: int = 0) -> tuple[int, int]:
    """Markers at most, and names that were listed per epoch.

    Args:
        left: which epoch's file a reader takes away when an epoch is committed.
    """
    place, old, most = Counted(), OldMarkers(), 0
    for epoch in range(1, epochs + 1):
        if restart_every and epoch % restart_every == 0:
            old = OldMarkers()
        place.there[marker(epoch)] = place.there[file(epoch)] = None
        if (gone := left(epoch)) is not None:
            place.there.pop(file(gone), None)
        old.remove(place, epoch, epoch)
        most = max(most, len(place.there))
    return most, place.listed // epochs


@pytest.mark.parametrize("epochs", [20_000, pytest.param(YEAR, marks=long)])
def test_a_year_of_epochs_leaves_as_much_as_a_day(epochs: int) -> None:
    most, listed = run(epochs, lambda epoch: epoch - 10)
    assert most < 12 * KEPT and listed < 12
    most, listed = run(epochs, lambda epoch: epoch - 10, restart_every=3)
    assert most < 12 * KEPT and listed < 12


def test_who_leaves_the_files_pays_little_for_it() -> None:
    _, listed = run(30_000, lambda epoch: None)
    assert listed < 12


def test_a_commit_looks_for_old_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And succeeds where they cannot be removed."""
    looked: list[int] = []

    def remove(self: OldMarkers, place: OutputPlace, epoch_id: int, needed: int) -> None:
        looked.append(epoch_id)
        raise PermissionError("we may not")

    monkeypatch.setattr(OldMarkers, "remove", remove)
    sink = sinks.files(str(tmp_path), format="json")
    sink.check("j", "out", is_new_job=True)
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 5, 0, "a0"))
    writer.write(pa.record_batch({"v": [1]}))
    sink.open_committer("j", "out").commit(
        writer.prepare(), CommitContext("j", "out", 1, 1, recovering=False)
    )
    assert looked == [5] and (tmp_path / marker(5)).exists()
