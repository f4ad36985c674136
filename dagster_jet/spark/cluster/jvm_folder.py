"""The temporary folder of Spark's JVM: its shuffled and cached rows, sockets, libraries and log.

Spark removes what it has written at its end, except the sockets of its Python workers; a JVM that
is killed removes nothing. So each JVM that we start has a folder of its own, which this process and
the JVM hold (`system/scratch.py`). The next start of this user on this host removes the folders of
those that are dead.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_jet.system.scratch import make_held, make_private, remove_unheld

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
_SOCKETS = "spark.python.unix.domain.socket.dir"
_PROPERTY = "java.io.tmpdir"
_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Environment variables in which a user gives options to a JVM."""
_PATH_BYTES_MAX = 64
"""A socket's path has at most 107 bytes, and the names of Spark's have 43 with the slash."""
_JAVAS_OWN = "/tmp"  # its default, whatever TMPDIR says
_KEEP_LOGS_S = 30 * 24 * 3600


@dataclass(frozen=True)
class JvmFolder:
    """Folder of one JVM.

    Attributes:
        descriptor: for the JVM to inherit; whoever has it open holds the folder.
    """

    path: Path
    descriptor: int

    @classmethod
    def make(cls) -> JvmFolder:
        """Makes a folder, and removes those of dead JVMs beside the caller.

        Raises:
            ConfigurationError: another user has made the place of these folders.
            OSError: the temporary folder is missing or not writable.
        """
        place = Path(tempfile.gettempdir()) / f"dagster-jet-spark-{os.geteuid()}"
        make_private(place, levels=1, setting="TMPDIR")
        # Gigabytes take a while, and the JVM a second to start.
        threading.Thread(target=_remove_old, args=[place], daemon=True).start()
        return cls(*make_held(place))

    def options_with(self, options: str, *others: str) -> str:
        """The JVM's options with this folder, unless the user has set a folder, also in `others`,
        or its path cannot be written in an option.

        Spark's own settings (`spark.local.dir`, SPARK_LOCAL_DIRS) precede it.
        """
        path = str(self.path)
        if not path.isascii() or '"' in path or "\\" in path:
            return options
        if any(_PROPERTY in said for said in (options, *others, *map(_environment, _VARIABLES))):
            return options
        return f'"-D{_PROPERTY}={self.path}" {options}'.strip()

    def socket_settings(self) -> dict[str, str]:
        """Settings that move Spark's sockets, if their paths would be too long in this folder."""
        is_long = len(os.fsencode(self.path)) > _PATH_BYTES_MAX
        return {_SOCKETS: _JAVAS_OWN} if is_long else {}

    @property
    def log(self) -> Path:
        """The output of the JVM."""
        return self.path / "jvm.log"

    def kept_log(self) -> Path:
        """Moves the log out of the folder, where it stays for a month after its last line."""
        kept = self.path.with_suffix(".log")
        with suppress(OSError):  # it was moved before, or cannot be moved
            self.log.rename(kept)
        return kept if kept.exists() else self.log

    def release(self) -> None:
        """This process holds the folder no longer; the JVM does until its end."""
        os.close(self.descriptor)


def _environment(name: str) -> str:
    return os.environ.get(name, "")


def _remove_old(place: Path) -> None:
    remove_unheld(place)
    for log in place.glob("*.log"):
        with suppress(OSError):  # another process removes it, too
            is_old = time.time() - log.stat().st_mtime > _KEEP_LOGS_S
            if is_old and not log.with_suffix("").exists():  # its JVM is dead
                log.unlink()
