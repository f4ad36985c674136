"""The archive of Spark's classes: who makes it, who uses it, and what replaces it."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from dagster_jet.cli import warm_up
from dagster_jet.jobs import sample_job
from dagster_jet.spark.cluster import class_archive
from dagster_jet.spark.cluster import session as sessions
from dagster_jet.spark.cluster.class_archive import ClassArchive


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(tmp_path, "x")


def made(archive: ClassArchive) -> None:
    assert archive.claim()
    archive.hidden.write_bytes(b"classes")
    assert archive.publish()


def test_made_by_one_and_then_there(archive: ClassArchive) -> None:
    assert archive.is_wanted and not archive.is_there
    assert archive.claim()
    assert not archive.claim() and not archive.is_wanted, "somebody is making it"
    archive.hidden.write_bytes(b"classes")
    assert not archive.is_there, "whoever starts now does without"
    assert archive.publish()
    assert archive.is_there and not archive.is_wanted
    assert archive.path is not None and archive.path.stat().st_mode & 0o077 == 0


def test_what_was_cut_off_is_not_there(archive: ClassArchive) -> None:
    """A JVM would die of it: a full disk, or a crash before all of it was on the disk."""
    made(archive)
    assert archive.path is not None
    archive.path.write_bytes(b"cla")
    assert not archive.is_there and archive.is_wanted
    made(archive)
    assert archive.is_there


def test_a_maker_that_was_killed_gives_it_back_in_time(archive: ClassArchive) -> None:
    assert archive.claim()
    [claim] = archive.hidden.parent.glob("*.making")
    long_ago = time.time() - 3600
    os.utime(claim, (long_ago, long_ago))
    assert archive.is_wanted and archive.claim()


def test_a_java_that_makes_none_is_not_asked_again(archive: ClassArchive) -> None:
    assert archive.claim() and not archive.publish()
    assert not archive.is_wanted and not archive.is_there
    made(archive)  # asked for by name
    assert archive.is_there


def test_archives_that_nobody_uses_any_more_go(archive: ClassArchive, tmp_path: Path) -> None:
    old, young = ClassArchive(tmp_path, "old"), ClassArchive(tmp_path, "young")
    made(old)
    made(young)
    assert old.path is not None
    os.utime(old.path, (0, 0))
    made(archive)
    assert not old.is_there and young.is_there


def test_the_users_own_options_stand(archive: ClassArchive) -> None:
    assert class_archive.options_with(archive, "-Dx=1") == "-Dx=1", "there is none yet"
    made(archive)
    options = class_archive.options_with(archive, "-Dx=1")
    assert f'"-XX:SharedArchiveFile={archive.path}"' in options and options.endswith("-Dx=1")
    own = "-XX:SharedArchiveFile=/mine.jsa"
    assert class_archive.options_with(archive, own) == own
    assert class_archive.options_with(None, "") == ""


def test_off_or_in_a_folder_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(class_archive.VARIABLE, "off")
    assert class_archive.for_this_machine() is None
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path / "link"))
    assert class_archive.for_this_machine() is None, "whoever made the link could exchange code"
    monkeypatch.delenv(class_archive.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = class_archive.for_this_machine()
    assert found is not None and found.hidden.parent == tmp_path / "dagster_jet"
    assert found.hidden.parent.stat().st_mode & 0o077 == 0


def test_another_java_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(class_archive.VARIABLE, str(tmp_path))
    names = set()
    for home in ("a", "b"):
        java = tmp_path / home / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(home)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
        for _ in range(2):
            found = class_archive.for_this_machine()
            assert found is not None
            names.add(found.hidden.name)
    assert len(names) == 2


def test_asked_for_at_the_end_of_the_first_process(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_end: list[Any] = []
    begun: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_end.append(call))
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: begun.append(command))
    class_archive.make_later(archive)
    [(start, *arguments)] = at_end
    assert begun == []
    start(*arguments)
    assert [command[1:] for command in begun] == [[*class_archive._MAKER]]
    made(archive)
    start(*arguments)
    assert len(begun) == 1, "somebody was faster"
    class_archive.make_later(archive)
    class_archive.make_later(None)
    assert len(at_end) == 1


def test_asked_for_beside_a_process_that_does_not_end(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that runs always, until it is killed."""
    begun = threading.Event()
    monkeypatch.setattr(atexit, "register", lambda *call: None)
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: begun.set())
    monkeypatch.setattr(class_archive, "_LONG_LIVED_S", 0.01)
    class_archive.make_later(archive)
    assert begun.wait(30)


def test_a_java_that_takes_too_long_is_ended(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE)
    session = SimpleNamespace(stop=lambda: archive.hidden.write_bytes(b"cla"))
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", SimpleNamespace(proc=jvm))
    monkeypatch.setattr(sessions, "open_session", lambda _: session)
    monkeypatch.setattr(sample_job, "run_sample", lambda *_: None)
    monkeypatch.setattr(warm_up, "_END_S", 0.1)
    monkeypatch.setenv(class_archive.VARIABLE, "")
    said = warm_up._made(archive)
    assert said == "The archive was not written within 0.1 s; Spark starts without one."
    assert jvm.wait(10) == -signal.SIGKILL
    assert not archive.hidden.exists() and archive.is_wanted
