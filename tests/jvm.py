"""How the JVMs of tests start: small, and with Spark's classes as another one had them in memory.

    python -m tests.jvm     writes these classes into an archive; `make test` does it once

Finding, reading and verifying classes was 12 of the 29 seconds of processor time that a start
takes, and some thirty tests start a JVM. Without the archive they run as well.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / ".cache" / "spark-classes.jsa"
# They live for seconds: a quick start is worth more than peak speed.
_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -Xlog:disable "
    "-XX:+IgnoreUnrecognizedVMOptions"
)
_VARIABLE = "JDK_JAVA_OPTIONS"


def start_quickly() -> None:
    """For every JVM that this process and its children start from now on."""
    archive = f' "-XX:SharedArchiveFile={ARCHIVE}"' if ARCHIVE.exists() else ""
    os.environ[_VARIABLE] = _OPTIONS + archive


def write_archive() -> None:
    """Runs a small job and keeps the classes that this took. A crash leaves no archive."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        hidden = Path(folder) / ARCHIVE.name
        os.environ[_VARIABLE] = f'{_OPTIONS} "-XX:ArchiveClassesAtExit={hidden}"'
        _run_a_job(Path(folder))
        if hidden.exists():
            hidden.rename(ARCHIVE)
        else:
            print("This JVM keeps no classes for the next; tests take a little longer.")


def _run_a_job(folder: Path) -> None:
    from pyspark import SparkContext

    from dagster_jet import JobConfig
    from tests.integration import child
    from tests.integration.world import random_rows, write_input

    for side in ("left", "right"):
        for number in range(3):
            write_input(folder / "in" / side, number, random_rows(number, 20, seed=1))
    with child.open_jet(folder) as jet:
        jet.run(child.crash_pipeline(folder), JobConfig(**child.CONFIG), until="completed")
        jet.session().stop()
    jvm = SparkContext._gateway.proc
    jvm.stdin.close()  # it ends with its parent, and writes the archive then
    jvm.wait(300)


if __name__ == "__main__":
    write_archive()
