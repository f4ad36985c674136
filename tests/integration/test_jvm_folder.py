"""The next start removes the temporary files of a killed JVM, and none of a JVM that lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dagster_jet.system.scratch import remove_unheld
from tests.long import long

from .child import SPARK
from .world import wait_until

# Shuffled and cached rows, and a Python worker: each leaves something.
JOB = f"""
from pyspark import SparkContext
from pyspark.sql.functions import udf
from dagster_jet.spark.cluster.session import open_session
session = open_session({SPARK!r})
rows = session.range(1000).repartition(3).withColumn("y", udf(lambda x: x + 1, "long")("id"))
rows = rows.persist(__import__("pyspark").StorageLevel.DISK_ONLY)
print(rows.groupBy("y").count().count(), flush=True)
print(SparkContext._gateway.proc.pid, flush=True)
while input():
    print(rows.groupBy("y").count().count(), flush=True)
"""


class Process:
    """A process with a Spark of its own."""

    def __init__(self, place: Path) -> None:
        before = set(place.glob("*/*-*-*/"))
        self.python = subprocess.Popen(
            [sys.executable, "-c", JOB],
            env={k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_GATEWAY")}
            | {"TMPDIR": str(place)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._answer() == "1000"
        self.jvm = int(self._answer())
        [self.folder] = set(place.glob("*/*-*-*/")) - before

    def count(self) -> str:
        assert self.python.stdin is not None
        self.python.stdin.write("again\n")
        self.python.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """As the kernel does when the memory of a container is full."""
        for pid in (self.jvm, self.python.pid):
            os.kill(pid, signal.SIGKILL)
        self.python.communicate()

    def names(self) -> str:
        return " ".join(path.name for path in self.folder.iterdir())

    def _answer(self) -> str:
        assert self.python.stdout is not None
        return self.python.stdout.readline().strip()


@contextmanager
def running(place: Path) -> Iterator[Process]:
    process = Process(place)
    try:
        yield process
    finally:
        process.python.kill()
        process.python.communicate()


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a short path, in which sockets may lie."""
    with tempfile.TemporaryDirectory(prefix="jet-") as name:
        yield Path(name)


@long  # four JVMs start; unit/system/test_scratch.py has the rules for folders
def test_a_start_removes_what_a_killed_jvm_left(place: Path) -> None:
    """Failed before: shuffled rows, libraries, sockets and logs gathered in the temporary folder
    with each kill, and sockets with each end."""
    with running(place) as live, running(place) as killed:
        killed.kill()
        for left in ("blockmgr-", "spark-", "liblz4-", ".sock", "jvm.log"):
            assert left in killed.names()
        with running(place) as third:
            wait_until(lambda: not killed.folder.exists(), "the next start removes it", 30)
            assert live.folder.exists() and live.count() == third.count() == "1000"
            assert third.folder.parent == live.folder.parent == killed.folder.parent
            os.kill(live.jvm, signal.SIGSTOP)
            live.python.kill()
            live.python.communicate()
            remove_unheld(third.folder.parent)
            assert "blockmgr-" in live.names(), "its JVM is not dead yet"
            os.kill(live.jvm, signal.SIGCONT)
    wait_until(lambda: _is_empty_after_a_start(killed.folder.parent), "all of them have ended", 30)
    assert not [path for path in place.iterdir() if path != killed.folder.parent]


@long
def test_a_long_path_has_no_sockets(tmp_path: Path) -> None:
    place = tmp_path / (80 * "x")
    place.mkdir()
    with running(place) as process:
        assert "blockmgr-" in process.names() and ".sock" not in process.names()
        process.kill()


def _is_empty_after_a_start(folder: Path) -> bool:
    remove_unheld(folder)
    return not list(folder.iterdir())
