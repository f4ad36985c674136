"""Starts a server, and ends it when it is told to, or when the test run is over.

python keeper.py PID_OF_THE_RUN USER -- COMMAND...

A run that is killed cannot end its servers: the keeper looks once a second whether it lives. It
leads a process group of its own; the server, and whatever that starts, are in it.
"""

import os
import signal
import subprocess
import sys
import time


def main() -> int:
    run, user, dashes, *command = sys.argv[1:]
    assert dashes == "--"
    server = subprocess.Popen(command, user=user or None, group=user or None,
                              extra_groups=[] if user else None)  # fmt: skip
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    while server.poll() is None:
        if asked or not os.path.exists(f"/proc/{run}"):
            end(server)
            break
        time.sleep(0.2 if not asked else 0)
    return server.returncode or 0


def end(server: subprocess.Popen) -> None:
    """Asks it to stop, and ends the group: what does not stop, what it leaves behind, ourselves."""
    server.terminate()
    try:
        server.wait(15)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
