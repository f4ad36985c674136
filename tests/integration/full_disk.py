"""A driver whose disks fill up one after the other, and are freed again when it has complained.

    python full_disk.py <world folder>

The disks are small tmpfs mounts. They need a mount namespace of their own, so the driver starts a
JVM of its own, too, and copies the output out of the namespace before it ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from dagster_jet import Jet, JobConfig
from dagster_jet.connectors.files import part_tasks
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionRestarting,
    JobEvent,
    SnapshotFailed,
)

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.integration import child, map_child
else:
    from . import child, map_child

SIZE = 4 * 2**20
DISKS = {2: "store/c", 4: "out", 6: "work", 8: "spark"}
"""Disk that fills up, by the epoch after which it does."""


def command(folder: Path) -> list[str]:
    """Command that starts this driver in a namespace of its own; most Linuxes need no privileges
    for it."""
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--map-root-user", "--mount"]
    return ["unshare", *namespaces, sys.executable, __file__, str(folder)]


class Incidents:
    """Fills a disk, waits for the complaint, frees the disk."""

    def __init__(
        self,
        folder: Path,
        disks: Mapping[int, str] = DISKS,
        complaints: type[Any] | UnionType = SnapshotFailed | ExecutionRestarting,
    ) -> None:
        self.folder, self.left, self.complaints = folder, dict(disks), complaints
        self.full: str | None = None

    def see(self, event: JobEvent) -> None:
        print(event, file=sys.stderr, flush=True)
        disk = self.full
        if isinstance(event, self.complaints) and disk is not None:
            if f"{self.folder}/{disk}" not in event.reason:
                return  # of several sinks each tells: the disk before, once more
            name = disk.partition("/")[0]
            print(f"{name}: {type(event).__name__} {event.reason}".replace("\n", " "), flush=True)
            (self.folder / disk / ".ballast").unlink()
            self.full = None
        if isinstance(event, EpochCompleted) and self.full is not None:
            fill_up(self.folder / self.full)  # what it has deleted since is room again
        elif isinstance(event, EpochCompleted) and self.left:
            epoch, disk = next(iter(self.left.items()))
            if event.epoch_id >= epoch:
                self.full = self.left.pop(epoch)
                fill_up(self.folder / disk)


def fill_up(disk: Path) -> None:
    if os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize > SIZE:
        raise SystemExit(f"{disk} is not a small disk")
    with open(disk / ".ballast", "ab", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"\0" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def main(folder: Path) -> None:
    for disk in DISKS.values():
        (folder / disk).mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder / disk)]
        subprocess.run(mount, check=True)
    incidents = Incidents(folder)
    # Every epoch shuffles what several tasks have read: that is what fills Spark's own scratch.
    epoch_driver.SPARED_ROWS = -1
    part_tasks._LEAST_TASK_BYTES = 1
    with Jet(
        store=[f"file://{folder}/store/{member}" for member in "abc"],
        spark={**child.SPARK, "spark.local.dir": f"{folder}/spark"},
        work_dir=folder / "work",
    ) as jet:
        config = JobConfig(**{**child.CONFIG, "restart_attempts_max": 20})
        result = jet.run(
            child.crash_pipeline(folder), config, until="completed", on_event=incidents.see
        )
        print(f"status: {result.status.value}")
        # Its rows are staged on the disk that fills.
        staging = Incidents(folder, {2: "store/c"}, ExecutionRestarting)
        jet.run(map_child.totals(folder), config, until="completed", on_event=staging.see)
        print(f"totals: {[[*key, value] for key, value in jet.map('totals').items()]}")
    shutil.copytree(folder / "out", folder / "rescued")
    subprocess.run(["umount", str(folder / "out")], check=True)
    (folder / "out").rmdir()
    (folder / "rescued").rename(folder / "out")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
