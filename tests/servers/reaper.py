"""Ends what a test run has started and left behind when it was cut off.

python reaper.py PID_OF_THE_RUN FOLDER

A run that is killed cannot end its browsers, webservers, JVMs and workers. They have inherited the
name of the run's folder (`shared.FOLDER`), by which they are known. A run that ends by itself
removes the folder, which ends this process, too.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

FOLDER = "JET_TEST_SERVERS"
_ROUNDS = 20
"""Processes may start others while they are ended."""


def main() -> int:
    run, folder = sys.argv[1:]
    while os.path.isdir(folder):
        if not os.path.exists(f"/proc/{run}"):
            for _ in range(_ROUNDS):
                for process in left_behind(folder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                time.sleep(0.1)
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.5)
    return 0


def left_behind(folder: str) -> list[int]:
    """Returns the processes of the run; not this one."""
    mark, found = f"{FOLDER}={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return [process for process in found if process != os.getpid()]


if __name__ == "__main__":
    sys.exit(main())
