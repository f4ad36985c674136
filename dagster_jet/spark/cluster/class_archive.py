"""Class data archive: Spark's loaded classes, kept in the user's cache for later JVMs.

Finding, reading and verifying classes takes half of Spark's start. The archive is made once, after
the first run or beside it if that is long, by a separate process (`dagster-jet warm-up`). The JVM
checks that it fits before it uses it. Without an archive Spark starts more slowly.

Source: JEP 350, "Dynamic CDS Archives".
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from dagster_jet.errors import ConfigurationError
from dagster_jet.system.scratch import make_private

VARIABLE = "DAGSTER_JET_CLASS_ARCHIVE"
"""Environment variable: the archives' folder, or "off"; default `dagster_jet` in the user's
cache."""
OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
_MAKER = ("-m", "dagster_jet.cli", "warm-up", "--quiet")
_STALE_S = 30 * 60
"""A maker whose claim is older, in seconds, counts as dead."""
_LONG_LIVED_S = 2 * 60
"""Seconds after which the archive is made beside a running process."""
_UNUSED_S = 30 * 24 * 3600
_QUIET = "-Xlog:cds=off -Xlog:class+path=off"
"""Silences warnings about an archive that does not fit, which a user cannot fix."""


class ClassArchive:
    """Archive for one Java and one PySpark. Only this user can write it, because it is code.

    Its size is in its name: a truncated archive crashes the JVM.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, f"spark-{name}"
        self._claim = folder / f"{self._name}.making"
        self._refused = folder / f"{self._name}.refused"
        self.hidden = folder / f"{self._name}.part"
        """Path while it is made. A crash leaves an unused file, which the next one replaces."""

    @property
    def path(self) -> Path | None:
        """Path of the archive; None if there is none."""
        for path in self._folder.glob(f"{self._name}-*.jsa"):
            with suppress(OSError):
                if path.name == self._named(path.stat().st_size):
                    return path
        return None

    @property
    def is_there(self) -> bool:
        return self.path is not None

    @property
    def is_wanted(self) -> bool:
        """True if it does not exist, is not being made, and this JVM has not failed to make it."""
        return not (self.is_there or self._refused.exists() or self._is_claimed())

    def claim(self) -> bool:
        """Claims making it; False if another process has. After a crash the claim expires."""
        if self._is_claimed():
            return False
        self._claim.unlink(missing_ok=True)
        try:
            os.close(os.open(self._claim, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def publish(self) -> bool:
        """Ends making it; returns whether the JVM wrote an archive. A failure is not repeated."""
        made = self.hidden.exists()
        if made:
            self._publish()
            self._refused.unlink(missing_ok=True)
        else:
            self._refused.touch(0o600)
        self.give_back()
        return made

    def give_back(self) -> None:
        self._claim.unlink(missing_ok=True)

    def _is_claimed(self) -> bool:
        try:
            return time.time() - self._claim.stat().st_mtime < _STALE_S
        except FileNotFoundError:
            return False

    def _publish(self) -> None:
        self.hidden.chmod(0o600)
        with open(self.hidden, "rb") as file:
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        path = self._folder / self._named(size)
        self.hidden.replace(path)
        # Each has 170 MB: removes the previous one, and those of a Java or PySpark unused for a
        # month.
        for other in self._folder.glob("spark-*.jsa"):
            is_ours = other.name.startswith(f"{self._name}-")
            if other != path and (is_ours or time.time() - other.stat().st_mtime > _UNUSED_S):
                other.unlink(missing_ok=True)

    def _named(self, size: int) -> str:
        return f"{self._name}-{size}.jsa"


def for_this_machine() -> ClassArchive | None:
    """Archive for this process's Java and PySpark; None if off, or if the cache is not writable."""
    said = os.environ.get(VARIABLE)
    if said == "off":
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(said) if said else cache / "dagster_jet"
    try:
        make_private(folder, levels=1)
    except (OSError, ConfigurationError):
        return None
    return ClassArchive(folder, _fingerprint())


def options_with(archive: ClassArchive | None, options: str) -> str:
    """The JVM's options, with the archive if it exists and the user has not set one."""
    path = archive.path if archive is not None else None
    if path is None or "SharedArchiveFile" in options:
        return options
    return f'"-XX:SharedArchiveFile={path}" {_QUIET} {options}'.strip()


def recording_options(archive: ClassArchive) -> str:
    """Options with which a JVM writes the archive at its exit."""
    return f'"-XX:ArchiveClassesAtExit={archive.hidden}" {_QUIET} -Xlog:cds+dynamic=off'


def make_later(archive: ClassArchive | None) -> None:
    """Has the archive made when this process ends or after a while, if nobody does it before. A
    separate process with the lowest priority does it, in about ten seconds."""
    if archive is None or not archive.is_wanted:
        return
    atexit.register(_start_maker, archive)
    # A job that always runs does not end, or is killed.
    timer = threading.Timer(_LONG_LIVED_S, _start_maker, [archive])
    timer.daemon = True
    timer.start()


def _start_maker(archive: ClassArchive) -> None:
    if not archive.is_wanted:
        return
    with suppress(OSError):  # the archive is optional
        subprocess.Popen(
            [sys.executable, *_MAKER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it outlives this process
        )


def _fingerprint() -> str:
    """Hash of what the JVM checks in an archive, so that it does not refuse one each time."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    with suppress(OSError):
        java = java.resolve()
    seen = java.stat() if java.exists() else None
    parts = (
        str(java),
        str(seen and (seen.st_size, seen.st_mtime_ns)),
        pyspark.__version__,
        str(Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent).resolve()),
        os.environ.get("SPARK_CONF_DIR", ""),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
