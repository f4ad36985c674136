"""The files sink without Spark: whose folder it is, and what a commit finds in it."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    Reaction,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.store import Store, StoreConfig
from dagster_jet.system import failpoint


@pytest.fixture(autouse=True)
def no_fail_points() -> Iterator[None]:
    yield
    failpoint.configure("")


# --- whose folder ---------------------------------------------------------------------------------


def store_of(name: str, namespace: str = "default") -> Store:
    urls = tuple(f"memory://{name}{m}" for m in "abc")
    return Store.open(StoreConfig(urls, allow_memory=True, partition_count=5, namespace=namespace))


def test_one_name_in_two_stores_or_namespaces_does_not_share_a_folder(tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    sink = FilesSink(str(tmp_path), "json")
    with (
        store_of(name) as mine,
        store_of(name) as reopened,
        store_of(name, "test") as namespace,
        store_of(uuid.uuid4().hex) as other,
    ):
        sink.with_store(mine).check("j", "out", is_new_job=True)
        sink.with_store(reopened).check("j", "out", is_new_job=True)
        for stranger in (namespace, other):
            with pytest.raises(ConfigurationError, match="belongs to 'j/out' of another") as told:
                sink.with_store(stranger).check("j", "out", is_new_job=True)
            for part in (mine.store_id, stranger.store_id, stranger.config.namespace):
                assert part in str(told.value)


def test_a_folder_of_an_older_version_belongs_to_the_first_store_that_comes(tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path), "json")
    sink.check("j", "out", is_new_job=True)  # which said nothing of a store
    assert (tmp_path / "_epochs/.owner").read_text() == "j/out"
    with store_of(uuid.uuid4().hex) as mine, store_of(uuid.uuid4().hex) as other:
        sink.with_store(mine).claim_place("j", "out")
        with pytest.raises(ConfigurationError, match="another store"):
            sink.with_store(other).claim_place("j", "out")


def test_a_folder_goes_to_the_present_name_of_its_sink_by_word(tmp_path: Path) -> None:
    sink, owner = FilesSink(str(tmp_path), "json"), tmp_path / "_epochs/.owner"
    sink.check("j", "out", is_new_job=True)
    with pytest.raises(ConfigurationError, match=r"'j/out'.*renamed=\{'out': 'rows'\}"):
        sink.check("j", "rows", is_new_job=False)
    renamed = sink.formerly("out")
    for job, stage in (("other", "rows"), ("j", "rows")):
        if job == "j":
            renamed.check(job, stage, is_new_job=False)
            assert owner.read_text() == "j/out", "a check changes nothing"
            renamed.claim_place(job, stage)
            assert owner.read_text() == "j/rows"
        else:
            with pytest.raises(ConfigurationError, match="belongs to 'j/out'"):
                renamed.claim_place(job, stage)
    renamed.claim_place("j", "rows")  # the words are repeated
    sink.check("j", "rows", is_new_job=False)
    with pytest.raises(ConfigurationError, match="belongs to 'j/rows'"):
        sink.check("j", "out", is_new_job=False)
    sink.formerly("rows").claim_place("j", "out")
    assert owner.read_text() == "j/out"


def test_two_jobs_of_one_process_that_start_at_once(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(200):
            assert sorted(_both_claim(tmp_path / str(number))) == ["ConfigurationError", "owner"]
    finally:
        sys.setswitchinterval(interval)


def _both_claim(folder: Path) -> list[str]:
    barrier, found = threading.Barrier(2), []

    def claim(job: str) -> None:
        barrier.wait()
        try:
            FilesSink(str(folder), "json").check(job, "out", is_new_job=True)
            found.append("owner")
        except Exception as error:
            found.append(type(error).__name__)

    threads = [threading.Thread(target=claim, args=(job,)) for job in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.name for path in (folder / "_epochs").iterdir()} == {".owner", ".partition_by"}
    return found


def test_a_claim_is_durable_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    fsync, link = os.fsync, os.link

    def syncs(descriptor: int) -> None:
        fsync(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        done.append(("sync", re.sub(r"\.(owner|partition_by)\.\w+$", "", path)))

    def links(old: Any, new: Any) -> None:
        link(old, new)
        done.append(("link", str(new)))

    monkeypatch.setattr(os, "fsync", syncs)
    monkeypatch.setattr(os, "link", links)
    out = tmp_path / "a/out"
    epochs = f"{out}/_epochs"
    FilesSink(str(out), "json").check("j", "out", is_new_job=True)
    folders = [tmp_path, tmp_path / "a", out, out / ".staging", out / ".staging/j"]
    assert {("sync", str(folder)) for folder in folders} <= set(done)
    claims = [
        step
        for mark in (".owner", ".partition_by")
        for step in (("sync", f"{epochs}/"), ("link", f"{epochs}/{mark}"), ("sync", epochs))
    ]
    assert [one for one in done if one[1].startswith(epochs)] == claims
    # Another one's may not be durable yet: whoever sees it makes sure before acting upon it.
    done.clear()
    with pytest.raises(ConfigurationError, match="belongs to 'j/out'"):
        FilesSink(str(out), "json").check("other", "out", is_new_job=True)
    assert done[-1] == ("sync", epochs)


def test_a_claim_that_a_crash_has_emptied_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "_epochs").mkdir()
    (tmp_path / "_epochs/.owner").touch()
    with pytest.raises(ConfigurationError, match=r"emptied .*_epochs/\.owner: delete it if"):
        FilesSink(str(tmp_path), "json").check("j", "out", is_new_job=False)


def test_a_start_on_a_full_disk_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start meets the disk that has ended the execution before it."""
    new, known = (FilesSink(str(tmp_path / name), "json") for name in ("new", "known"))
    known.check("j", "out", is_new_job=True)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", full)
        with pytest.raises(SinkError, match="No space left on device") as told:
            new.check("j", "out", is_new_job=True)
        known.check("j", "out", is_new_job=False)
    assert told.value.reaction is Reaction.RESTART and not isinstance(
        told.value, ConfigurationError
    )
    new.check("j", "out", is_new_job=True)


# --- commits --------------------------------------------------------------------------------------


@pytest.fixture
def sink(tmp_path: Path) -> FilesSink:
    sink = FilesSink(str(tmp_path / "out"), "json")
    sink.check("j", "out", is_new_job=True)
    return sink


def stage(
    sink: FilesSink, *values: int, execution_id: int = 1, attempt: str = "x"
) -> list[Artifact]:
    artifacts: list[Artifact] = []
    for shard, value in enumerate(values):
        writer = sink.open_writer(TransactionId("j", "out", 1, execution_id, 1, shard, attempt))
        writer.write(pa.record_batch({"a": pa.array([value])}))
        artifacts += writer.prepare()
    return artifacts


def by(execution_id: int, *, accept_loss: bool = False) -> CommitContext:
    return CommitContext("j", "out", 1, execution_id, execution_id > 1, accept_loss)


def visible(sink: FilesSink) -> list[str]:
    return [path.read_text().strip() for path in sorted(Path(sink.path).glob("part-*"))]


def test_a_commit_that_is_repeated_after_its_marker(sink: FilesSink) -> None:
    parts = stage(sink, 1, 2)
    sink.commit(parts, by(1))
    for path in Path(sink.path).glob("part-*"):
        path.unlink()  # a reader has moved on what the marker lists
    sink.commit(parts, by(2))
    assert visible(sink) == []


def test_a_commit_without_what_was_lost_is_repeated(sink: FilesSink) -> None:
    parts = stage(sink, 1, 2)
    Path(parts[0].token).unlink()
    sink.commit(parts, by(1, accept_loss=True))
    sink.commit(parts, by(2))
    assert visible(sink) == ['{"a":2}']


@pytest.mark.parametrize("of_other", [1, 2])
def test_the_marker_of_another_job_of_this_name(sink: FilesSink, of_other: int) -> None:
    mine = stage(sink, 4, 5, attempt="x")
    others = stage(sink, 1, 2, execution_id=of_other, attempt="y")
    sink.commit(others, by(of_other))
    with pytest.raises(SinkMismatchError) as told:
        sink.commit(mine, by(1))
    assert told.value.reaction is Reaction.FAIL
    for part in (mine[0].target, f"{mine[0].checksum:016x}", others[0].target, "0000000001.json"):
        assert part in str(told.value)
    assert all(Path(part.token).exists() for part in mine)
    assert visible(sink) == ['{"a":1}', '{"a":2}']
    # The cure: a folder of its own, which what is staged reaches.
    own = FilesSink(f"{sink.path}2", "json")
    own.claim_place("j", "out")
    own.commit(mine, by(2))
    assert visible(own) == ['{"a":4}', '{"a":5}']


def test_a_reader_that_takes_a_file_before_the_marker_lists_it(
    sink: FilesSink, tmp_path: Path
) -> None:
    parts = stage(sink, 1)
    failpoint.configure("files.commit.marker=raise")
    with pytest.raises(SinkUnavailableError, match=r"fail point files\.commit\.marker"):
        sink.commit(parts, by(1))
    failpoint.configure("")
    (target,) = Path(sink.path).glob("part-*")
    target.rename(tmp_path / "taken.json")
    with pytest.raises(
        ArtifactLostError, match=r"unless a reader took the file.*was taken back into"
    ):
        sink.commit(parts, by(2))
    (tmp_path / "taken.json").rename(target)
    sink.commit(parts, by(2))
    assert visible(sink) == ['{"a":1}']


def test_a_sink_that_was_moved_to_another_file_system(
    sink: FilesSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = stage(sink, 1)
    moved = FilesSink(str(tmp_path / "moved"), "json")
    moved.claim_place("j", "out")

    def rename(old: Any, new: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(old), None, str(new))

    with monkeypatch.context() as mounted:
        mounted.setattr(os, "rename", rename)
        with pytest.raises(SinkMismatchError, match="another file system") as told:
            moved.commit(parts, by(2))
    assert told.value.reaction is Reaction.FAIL
    assert parts[0].token in str(told.value) and f"{moved.path}/part-" in str(told.value)
    sink.commit(parts, by(2))  # the cure
    assert visible(sink) == ['{"a":1}']


@pytest.mark.parametrize("accept_loss", [False, True])
@pytest.mark.parametrize("step", ["rename", "link"])
def test_another_execution_commits_in_the_middle_and_a_reader_is_fast(
    sink: FilesSink, monkeypatch: pytest.MonkeyPatch, step: str, accept_loss: bool
) -> None:
    """Neither side may take for lost what the other has committed, nor touch its marker."""
    parts = stage(sink, 1, 2)
    taken: list[str] = []
    real = getattr(os, step)

    def overtaken(old: Any, new: Any) -> None:
        monkeypatch.undo()
        sink.commit(parts, by(1))
        taken.extend(visible(sink))
        for path in Path(sink.path).glob("part-*"):
            path.unlink()
        return real(old, new)

    monkeypatch.setattr(os, step, overtaken)
    marker = Path(sink.path, "_epochs/0000000001.json")
    sink.commit(parts, by(2, accept_loss=accept_loss))
    assert taken == ['{"a":1}', '{"a":2}'] and visible(sink) == []
    assert [file["rows"] for file in json.loads(marker.read_text())["files"]] == [1, 1]
    assert [p.name for p in marker.parent.iterdir() if "json" in p.name] == [marker.name]


def test_what_stands_under_a_final_name_counts_only_with_the_right_content(sink: FilesSink) -> None:
    """A staged file that is gone was renamed, or is lost: only the checksum tells."""
    (part,) = stage(sink, 1)
    Path(part.token).unlink()
    target = Path(sink.path, part.target)
    for other in ('{"a":2}\n', '{"a":', ""):
        target.write_text(other)
        with pytest.raises(ArtifactLostError, match="or is another file"):
            sink.commit([part], by(2))
        assert not list(Path(sink.path, "_epochs").glob("*.json"))
    target.write_text('{"a":1}\n')
    sink.commit([part], by(2))
    assert visible(sink) == ['{"a":1}']


@pytest.mark.parametrize(
    ("call", "number", "reaction"),
    [
        *[(call, errno.ENOSPC, Reaction.RETRY) for call in ("rename", "link", "fsync")],
        *[(call, errno.ESTALE, Reaction.RETRY) for call in ("rename", "link", "fsync")],
        ("rename", errno.EDQUOT, Reaction.RETRY),
        ("fsync", errno.EIO, Reaction.RETRY),
        ("rename", errno.ENOTDIR, Reaction.RESTART),
        ("rename", errno.EXDEV, Reaction.FAIL),
    ],
)
def test_a_commit_says_what_is_to_become_of_it(
    sink: FilesSink,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    reaction: Reaction,
) -> None:
    parts = stage(sink, 1)

    def fail(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(SinkError) as told:
            sink.commit(parts, by(1))
    assert told.value.reaction is reaction and (told.value.job, told.value.stage) == ("j", "out")
    assert os.strerror(number) in str(told.value) or number == errno.EXDEV
    sink.commit(parts, by(1))
    assert visible(sink) == ['{"a":1}']


def test_an_output_folder_that_vanishes_is_no_lost_file(sink: FilesSink, tmp_path: Path) -> None:
    parts = stage(sink, 1)
    Path(sink.path).rename(tmp_path / "away")
    with pytest.raises(SinkError, match=r"output folder .* is gone") as told:
        sink.commit(parts, by(1))
    assert told.value.reaction is Reaction.RESTART and not Path(sink.path).exists()
    (tmp_path / "away").rename(sink.path)
    sink.commit(parts, by(1))
    assert visible(sink) == ['{"a":1}']


def test_a_folder_that_is_not_this_jobs_any_more_is_left_as_it_is(tmp_path: Path) -> None:
    """Failed before: a folder that is not mounted got marks, and was then refused."""
    sink = FilesSink(str(tmp_path / "out"), "json")
    sink.check("j", "out", is_new_job=False)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    sink.check("j", "out", is_new_job=False)
    assert not [*(tmp_path / "out").iterdir()]
    sink.claim_place("j", "out")
    with pytest.raises(ConfigurationError, match="belongs to 'j/out'"):
        sink.check("other", "out", is_new_job=False)
