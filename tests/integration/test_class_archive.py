"""A JVM that starts with the archive of Spark's classes takes them from it; a broken one is nothing
to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dagster_jet.spark.cluster import class_archive
from tests.long import long

from ..jvm import CACHE

START = """
import sys
from dagster_jet.spark.cluster.session import open_session
print(open_session({"spark.driver.extraJavaOptions": sys.argv[1]}).range(3).count())
"""


def classes_from_archive(folder: Path, log: Path) -> int:
    """Number of classes that a new process's JVM takes from the archive in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", START, f"-Xlog:class+load:file={log}"],
        env={**os.environ, class_archive.VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.strip() == "3", done.stderr
    return log.read_text().count("source: shared objects file (top)")


def test_classes_come_from_the_archive(tmp_path: Path) -> None:
    assert list(CACHE.glob("spark-*.jsa")), "make test has it made: dagster-jet warm-up"
    assert classes_from_archive(CACHE, tmp_path / "log") > 5_000


@long
def test_a_broken_archive_is_no_error(tmp_path: Path) -> None:
    """One that the JVM does not believe. (One that is cut off it would: that is found before.)"""
    [whole] = CACHE.glob("spark-*-*.jsa")
    broken = bytearray(whole.read_bytes())
    broken[:8] = b"no magic"
    (tmp_path / whole.name).write_bytes(broken)
    assert classes_from_archive(tmp_path, tmp_path / "log") == 0
