"""Places behind a driver of fsspec, through fsspec's own file system in memory; and without one."""

from __future__ import annotations

import errno
import json
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFile

from dagster_jet import sinks, sources
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.connectors.files.places import location, remote
from dagster_jet.connectors.files.places.listing import found_in
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.places.remote import RemoteInput, RemoteOutput
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.text_tasks import Header, ReadCsv
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.connectors.task_shares import FixedShares
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    MissingEnvironmentError,
    SinkMismatchError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system import failpoint


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setitem(location.SCHEMES, "memory", "memory")
    yield f"memory://{uuid.uuid4().hex}/out"
    failpoint.configure("")


@pytest.fixture
def sink(url: str) -> FilesSink:
    made = sinks.files(url, format="json")
    made.check("j", "out", is_new_job=True)
    return made


def stage(sink: FilesSink, *values: int, execution_id: int = 1) -> list[Artifact]:
    artifacts: list[Artifact] = []
    for shard, value in enumerate(values):
        writer = sink.open_writer(TransactionId("j", "out", 1, execution_id, 1, shard, "x"))
        writer.write(pa.record_batch({"a": pa.array([value])}))
        artifacts += writer.prepare()
    return artifacts


def by(execution_id: int, *, accept_loss: bool = False) -> CommitContext:
    return CommitContext("j", "out", 1, execution_id, execution_id > 1, accept_loss)


def visible(url: str) -> list[str]:
    fs, root = fsspec.core.url_to_fs(url)
    found = [name for name in fs.ls(root, detail=False) if "/part-" in name]
    return [fs.cat_file(name).decode().strip() for name in sorted(found)]


def staged(url: str) -> list[str]:
    fs, root = fsspec.core.url_to_fs(url)
    found: list[str] = fs.find(f"{root}/.staging")
    return found


def test_a_commit_and_its_repetition(url: str, sink: FilesSink) -> None:
    parts = stage(sink, 1, 2)
    assert visible(url) == [] and len(staged(url)) == 2
    sink.commit(parts, by(1))
    assert visible(url) == ['{"a":1}', '{"a":2}'] and staged(url) == []
    marker = json.loads(sink.place().read("_epochs/0000000001.json") or "")
    assert [file["name"] for file in marker["files"]] == [part.target for part in parts]
    fs, root = fsspec.core.url_to_fs(url)
    fs.rm_file(f"{root}/{parts[0].target}")  # a reader has moved on what the marker lists
    sink.commit(parts, by(2))
    assert visible(url) == ['{"a":2}']


@pytest.mark.parametrize("point", ["file:2", "renamed", "marker"])
def test_another_process_goes_on_where_one_died(url: str, sink: FilesSink, point: str) -> None:
    parts = stage(sink, 1, 2)
    failpoint.configure(f"files.commit.{point}=raise")
    with pytest.raises(SinkUnavailableError, match="fail point"):
        sink.commit(parts, by(1))
    failpoint.configure("")
    FilesSink.reopen(destination_of(sink)).commit(parts, by(2))
    assert visible(url) == ['{"a":1}', '{"a":2}']


def test_orphans_lost_files_and_other_owners(url: str, sink: FilesSink) -> None:
    kept = stage(sink, 1)
    assert sink.abort_orphans(by(2), [kept[0].token]) == 0
    assert sink.abort_orphans(by(2), []) == 1 and staged(url) == []
    with pytest.raises(ArtifactLostError):
        sink.commit(kept, by(2))
    with pytest.raises(ConfigurationError, match="belongs to 'j/out'"):
        sink.check("other", "out", is_new_job=True)
    moved = sinks.files(f"{url}2", format="json")
    with pytest.raises(SinkMismatchError):
        moved.commit(stage(sink, 3), by(2))


def test_an_aborted_writer_leaves_nothing(url: str, sink: FilesSink) -> None:
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "x"))
    writer.write(pa.record_batch({"a": pa.array([1])}))
    writer.abort()
    assert staged(url) == []


def test_a_driver_that_writes_over_what_is_there_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = type(fsspec.filesystem("memory"))
    write = fs.pipe_file
    monkeypatch.setattr(fs, "pipe_file", lambda self, path, data, mode="": write(self, path, data))
    with pytest.raises(ConfigurationError, match="does not keep a document as it is"):
        sinks.files(url, format="json").check("j", "out", is_new_job=True)


@pytest.mark.parametrize("ends", [True, False])
def test_a_copy_that_goes_on_after_its_answer(
    url: str, sink: FilesSink, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Failed before: Azure may answer before it has copied, and the source was removed at once."""
    parts = stage(sink, 1)
    fs, root = fsspec.core.url_to_fs(url)
    copy, look, pending = type(fs).cp_file, type(fs).info, list[tuple[str, str]]()

    def cp_file(self: Any, source: str, target: str) -> None:
        self.pipe_file(target, b"")
        pending.append((source, target))

    def info(self: Any, path: str, **more: Any) -> Any:
        found = look(self, path, **more)
        if ends and pending:
            copy(self, *pending.pop())
        return found

    monkeypatch.setattr(type(fs), "cp_file", cp_file)
    monkeypatch.setattr(type(fs), "info", info)
    monkeypatch.setattr(remote, "_LOOKS_MAX", 3)
    place = RemoteInput(url, ())
    fs.pipe_file(f"{root}/a.json", b"a")
    (file,) = (file for file in place.listing().files if file.path.endswith("a.json"))
    if ends:
        sink.commit(parts, by(1))
        place.move(file, f"{url}/_done/a.json")
        assert fs.cat_file(f"{root}/_done/a.json") == b"a" and not fs.exists(f"{root}/a.json")
    else:
        with pytest.raises(SinkUnavailableError, match="has not ended the copy"):
            sink.commit(parts, by(1))
        assert len(staged(url)) == 1
        with pytest.raises(OSError, match="has not ended the copy"):
            place.move(file, f"{url}/_done/a.json")
        assert fs.exists(f"{root}/a.json")
        monkeypatch.setattr(type(fs), "cp_file", copy)
        sink.commit(parts, by(2))
    assert visible(url) == ['{"a":1}'] and staged(url) == []


def test_a_bucket_is_not_made(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: the drivers of Google and Azure make the bucket of a folder, also that of an
    archive whose name is wrong."""
    fs, root = fsspec.core.url_to_fs(url)
    monkeypatch.setattr(remote, "_FLAT", frozenset({"memory"}))
    made: list[str] = []
    monkeypatch.setattr(type(fs), "makedirs", lambda _, path, **__: made.append(path))
    fs.pipe_file(f"{root}/a.json", b"a")
    place = RemoteInput(url, ())
    (file,) = place.listing().files
    place.move(file, f"{url}-done/a.json")
    assert fs.cat_file(f"{root}-done/a.json") == b"a" and place.find(file.path) is None
    assert made == []


def test_an_open_file_takes_little_memory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: adlfs keeps 50 MiB of each of the 32 files that a task writes at once."""
    fs = type(fsspec.filesystem("memory"))
    opens, kept = fs.open, list[Any]()

    def open(self: Any, path: str, mode: str = "rb", block_size: Any = None, **more: Any) -> Any:
        kept.append(block_size)
        return opens(self, path, mode, block_size, **more)

    monkeypatch.setattr(fs, "open", open)
    made = sinks.files(url, format="json")
    made.check("j", "out", is_new_job=True)
    made.commit(stage(made, 1), by(1))
    place = RemoteInput(url, ())
    (file,) = place.listing().files
    place.open(file).close()
    assert list(filter(None, kept)) == [8 << 20, 8 << 20]  # to write and to read


def test_a_driver_that_fails_in_words_of_its_own(
    url: str, sink: FilesSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = stage(sink, 1)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the server is busy")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cp_file", fail)
    with pytest.raises(SinkUnavailableError, match="the server is busy"):
        sink.commit(parts, by(1))


def test_what_is_read(url: str) -> None:
    fs, root = fsspec.core.url_to_fs(url)
    for name in ("a.json", "_hidden.json", "d=1/b.json", "d=1/.c.json"):
        fs.pipe_file(f"{root}/{name}", b'{"v": 1}\n')

    def paths(path: str) -> list[str]:
        reader = reader_of(path)
        return [file.path for file in reader.plan(10**6) or ()]

    assert paths(url) == [f"{url}/a.json"]
    assert paths(f"{url}/d=*/*.json") == [f"{url}/d=1/b.json"]
    reader = reader_of(url)
    (file,) = reader.plan(10) or ()
    with reader._place.open(file) as stream:
        assert stream.read() == b'{"v": 1}\n'
    position, journal = reader.position(), reader.take_journal()
    again = reader_of(url)
    again.restore(position, journal)
    again.poll()
    fs.pipe_file(f"{root}/a.json", b'{"v": 2}\n')
    with pytest.raises(SourceError, match="has changed since"):
        again.poll()
    with pytest.raises(SourceError, match="does not exist"):
        reader_of(f"{url}/none")


def test_a_bucket_has_no_empty_folders(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: a source of Google or Azure was refused once its last object was consumed; and
    one of a bucket that does not exist waited if it had subfolders."""
    fs, root = fsspec.core.url_to_fs(url)
    monkeypatch.setattr(remote, "_FLAT", frozenset({"memory"}))
    for path, recursive in ((url, False), (url, True), (f"{url}/*/*.json", False)):
        with pytest.raises(SourceError, match="does not exist"):  # nor does the bucket
            reader_of(path, recursive=recursive)
    for name in (f"{root}/a.json", f"{root}2/b.json"):
        fs.pipe_file(name, b'{"v": 1}\n')
    reader = reader_of(url)
    assert len(reader.plan(10) or ()) == 1
    fs.rm_file(f"{root}/a.json")
    again = reader_of(url)
    again.restore(reader.position(), reader.take_journal())
    for one in (reader, again):
        one.accept(one.poll())
        assert one.plan(10) is None
    fs.pipe_file(f"{root}/c.json", b'{"v": 2}\n')
    again.accept(again.poll())
    (part,) = again.plan(10) or ()
    assert part.path == f"{url}/c.json"


@pytest.mark.parametrize(
    ("pattern", "recursive", "expected"),
    [
        ("", False, {"a.json"}),
        ("", True, {"a.json", "d/b.json"}),
        ("/*", False, {"a.json"}),
        ("/*/*", False, {"d/b.json"}),
    ],
)
def test_an_object_that_stands_for_a_folder_is_no_file(
    url: str, monkeypatch: pytest.MonkeyPatch, pattern: str, recursive: bool, expected: set[str]
) -> None:
    """Failed before: consoles make folders so, and the object was an input file."""
    fs, root = fsspec.core.url_to_fs(url)
    monkeypatch.setattr(remote, "_FLAT", frozenset({"memory"}))
    for name in ("a.json", "d/b.json"):
        fs.pipe_file(f"{root}/{name}", b'{"v": 1}\n')
    for name in (f"{root}/", f"{root}/d/", f"{root}/e/", f"{root}/d/f/"):
        monkeypatch.setitem(fs.store, name, MemoryFile(fs, name))
    found = reader_of(url + pattern, recursive=recursive).plan(10) or ()
    assert {part.path for part in found} == {f"{url}/{name}" for name in expected}
    # S3 lists them without a driver.
    objects = [InputFile(1, f"s3://b/{name}", 0) for name in ("in/", "in/d/", "in/d/b.json")]
    listed = found_in(f"s3://b/in{pattern}", objects, recursive=recursive).files
    assert [file.path for file in listed] == ["s3://b/in/d/b.json"][: "d/b.json" in expected]


def test_a_folder_that_azure_shows_as_a_file(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: adlfs shows `in/` as the empty file `in`, and then nothing else in the folder;
    and `in/d/` as the empty file `in/d`, which it cannot open."""
    fs, root = fsspec.core.url_to_fs(url)
    azure = url.replace("memory:", "abfs:")
    monkeypatch.setattr(remote, "connected", lambda *_: (fs, root))
    for name in ("a.json", "d", "d/b.json"):
        fs.store[f"{root}/{name}"] = MemoryFile(fs, f"{root}/{name}", b"" if name == "d" else b"1")
    shown = [{"name": root, "type": "file", "size": 0}]
    monkeypatch.setattr(type(fs), "ls", lambda *_, **__: shown)
    below = {name: fs.info(name) for name in fs.store if name.startswith(f"{root}/")}
    monkeypatch.setattr(type(fs), "find", lambda *_, **__: below)
    for recursive, expected in ((False, {"a.json"}), (True, {"a.json", "d/b.json"})):
        found = RemoteInput(azure, (), recursive).listing().files
        assert {file.path for file in found} == {f"{azure}/{name}" for name in expected}


def test_a_subfolder_that_cannot_be_read_is_not_empty(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: fsspec's own `find` leaves out what raises."""
    fs, root = fsspec.core.url_to_fs(url)
    for name in ("a.json", "d=1/b.json", "d=2/x/c.json", "_h/d.json", "e/f.json", "d=.tmp/g.json"):
        fs.pipe_file(f"{root}/{name}", b'{"v": 1}\n')
    files = type(fs).ls
    unreadable: list[str] = []

    def ls(self: Any, path: str, detail: bool = True, **more: Any) -> Any:
        if any(path.endswith(name) for name in unreadable):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return files(self, path, detail=detail, **more)

    monkeypatch.setattr(type(fs), "ls", ls)
    every = ["a.json", "d=.tmp/g.json", "d=1/b.json", "d=2/x/c.json", "e/f.json"]
    cases = (
        ("", True, every, ["/d=1", "/x", "/e"]),
        ("/d=*/*.json", False, ["d=.tmp/g.json", "d=1/b.json"], ["/d=1", "/d=2"]),
        ("/*/*/*.json", False, ["d=2/x/c.json"], ["/d=1", "/x", "/e", "/_h"]),
    )
    for pattern, recursive, expected, needed in cases:
        unreadable[:] = {"/d=1", "/x", "/e", "/_h", "/d=2"} - {*needed, "/d=2"}
        reader = reader_of(url + pattern, recursive=recursive)
        paths = [file.path.removeprefix(f"{url}/") for file in reader.plan(10**6) or ()]
        assert sorted(paths) == expected
        for folder in needed:
            unreadable[:] = [folder]
            with pytest.raises(SourceUnavailableError, match="Permission denied"):
                reader.poll()


def test_a_name_that_the_driver_takes_for_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: adlfs opens `a` for `a#`, and the error said that the file had changed."""
    fs, root = fsspec.core.url_to_fs(url)
    strip = type(fs)._strip_protocol
    taken = staticmethod(lambda path: strip(path).rstrip("#"))
    monkeypatch.setattr(type(fs), "_strip_protocol", taken)
    fs.store[f"{root}/b#.json#"] = MemoryFile(fs, f"{root}/b#.json#", b'{"v": 1}\n')
    with pytest.raises(SourceUnavailableError, match=r"b#\.json#.*cannot open a file of this name"):
        reader_of(url)


def test_other_metadata_is_no_other_content() -> None:
    """Failed before: an ETag of Google may change with the metadata."""
    place = RemoteInput("gs://b/x", ())
    one = {"name": "b/x/a", "size": 1, "generation": "1", "etag": "e1", "md5Hash": "m"}
    for first in (one, {**one, "md5Hash": None}):
        file = place._file(first, "b/x")
        assert file.path == "gs://b/x/a"
        assert place._file({**first, "etag": "e2", "metageneration": "2"}, "b/x") == file
        other = {"md5Hash": first["md5Hash"] and "n", "generation": "2", "etag": "e3"}
        assert place._file({**first, **other}, "b/x") != file
    azure = RemoteInput("abfs://c@a/x", ())
    assert azure._file({"name": "c/x/a", "size": 1, "etag": "e1"}, "c/x").etag == "e1"


def reader_of(path: str, *, recursive: bool = False) -> FilesReader:
    source = sources.files(path, format="json", schema="v long", recursive=recursive)
    reader = source.open("j", "in", None)
    reader.accept(reader.poll())
    return reader


@pytest.mark.parametrize(
    ("place", "module", "extra"),
    [("gs://b/x", "gcsfs", r"\[gcs\]"), ("abfss://c@a.dfs.core.windows.net/x", "adlfs", r"azure")],
)
def test_a_driver_that_is_not_installed_is_named(
    place: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    source = sources.files(place, format="json", schema="v long")
    with pytest.raises(MissingEnvironmentError, match=extra):
        source.open("j", "in", None)
    with pytest.raises(MissingEnvironmentError, match=extra):
        sinks.files(place, format="json").check("j", "out", is_new_job=True)


def test_hadoops_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(MissingEnvironmentError, match="HADOOP_HOME"):
        sources.files("hdfs://127.0.0.1:9/in", format="json", schema="v long").open("j", "in", None)


def test_tasks_read_its_lines(url: str) -> None:
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe_file(f"{root}/a.csv", b"k,v\n\n# no\na,1\r\nb,2")
    (file,) = reader_of(url).plan(10) or ()
    slices = tuple((Slice(file, begin, begin + 5),) for begin in range(0, file.size, 5))
    header = Header(("k", "v"), ",", '"', is_checked=True)
    numbers = [pa.record_batch({"id": [n]}) for n in range(len(slices))]
    read = ReadCsv((url, ()), FixedShares(slices), False, pa.schema([]), comment="#", header=header)
    assert [line for batch in read(numbers) for line in batch.column(0).to_pylist()] == [
        "a,1",
        "b,2",
    ]


def test_what_a_driver_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="can only be read"):
        sinks.files("hdfs://host/out", format="json")
    with pytest.raises(ConfigurationError, match="account_key is given in plain text"):
        sources.files("abfs://c@a/x", format="parquet", storage_options={"account_key": "abc"})
    assert RemoteOutput("gs://b/x", (("project", "p"),)).url == "gs://b/x"
