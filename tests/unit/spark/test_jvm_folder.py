"""Where Spark's JVM keeps its temporary files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_jet.spark.cluster.jvm_folder import JvmFolder

from ...servers.shared import wait_until


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JvmFolder]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = JvmFolder.make()
    yield made
    made.release()


def test_the_jvm_gets_the_folder_unless_the_user_gives_one(
    folder: JvmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.options_with("-Xss4m") == f'"-Djava.io.tmpdir={folder.path}" -Xss4m'
    own = "-Djava.io.tmpdir=/own"
    assert folder.options_with(own) == own
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", own)
    assert folder.options_with("-Xss4m") == "-Xss4m"


def test_sockets_are_elsewhere_if_their_paths_would_be_too_long() -> None:
    path = Path("/" + 63 * "x")
    assert JvmFolder(path, -1).socket_settings() == {}
    assert JvmFolder(path / "y", -1).socket_settings() == {
        "spark.python.unix.domain.socket.dir": "/tmp"
    }


def test_a_log_that_an_error_names_outlives_its_folder_for_a_month(folder: JvmFolder) -> None:
    folder.log.write_text("said")
    kept = folder.kept_log()
    assert kept.read_text() == "said" and not folder.log.exists() and folder.kept_log() == kept
    os.utime(kept, 2 * (time.time() - 29 * 24 * 3600,))
    old = kept.with_stem("old")
    old.touch()
    os.utime(old, 2 * (time.time() - 31 * 24 * 3600,))
    JvmFolder.make().release()
    wait_until(lambda: not old.exists(), within=10)
    assert kept.exists() and folder.path.exists()
