"""One server of a kind for all worker processes of a test run.

The process that pytest was started in makes a folder and names it in `JET_TEST_SERVERS`, which
pytest-xdist's workers inherit. Who needs a server first starts it there, under a lock; the others
read what the first has noted. A keeper (`keeper.py`) ends each server with the run, however the run
ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

FOLDER = "JET_TEST_SERVERS"
STARTING_TAKES_AT_MOST = 120


@dataclass(frozen=True)
class SharedServer:
    """A server of this run, as the process that has started it noted it."""

    kind: str
    folder: str
    keeper: int
    """The process that ends it; with the server's group."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Port, user, ...: what `start` has returned."""

    @property
    def log(self) -> Path:
        return Path(self.folder) / "log"


@dataclass(frozen=True)
class ToStart:
    """Result of `start` of a kind of server."""

    command: Sequence[str]
    is_ready: Callable[[], bool]
    """Asked every 100 ms; may raise."""
    facts: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """User of the machine for a server that refuses to run as root."""


def shared_server(kind: str, start: Callable[[Path], ToStart]) -> SharedServer:
    """The run's server of a kind; started if nobody has.

    Args:
        start: prepares an empty folder, and says how the server is started in it.

    Raises:
        RuntimeError: it does not start; with the end of its log.
    """
    run = Path(os.environ[FOLDER])
    with (run / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        noted = run / f"{kind}.json"
        if noted.exists():
            return SharedServer(**json.loads(noted.read_text()))
        folder = run / kind
        shutil.rmtree(folder, ignore_errors=True)  # of one who died while it started
        folder.mkdir()
        folder.chmod(0o755)
        server = launch(kind, folder, start(folder))
        noted.write_text(json.dumps(asdict(server)))
        return server


def launch(kind: str, folder: Path, server: ToStart) -> SharedServer:
    """Starts a server in a folder, for a test that wants one of its own, to kill; `stop` ends it.

    Raises:
        RuntimeError: it does not start; with the end of its log.
    """
    keeper = subprocess.Popen(
        [
            sys.executable, str(Path(__file__).with_name("keeper.py")),
            str(os.environ.get("JET_TEST_CONTROLLER", os.getpid())),
            server.user or "", "--", *server.command,
        ],
        stdin=subprocess.DEVNULL,
        stdout=(folder / "log").open("ab"),
        stderr=subprocess.STDOUT,
        env=os.environ | dict(server.environment),
        cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(
            lambda: keeper.poll() is not None or server.is_ready(), within=STARTING_TAKES_AT_MOST
        )
        if keeper.poll() is not None:
            raise RuntimeError("it has ended at once")
    except Exception as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(keeper.pid, signal.SIGKILL)
        log = (folder / "log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{kind} does not start: {error}\n{log}") from error
    return SharedServer(kind, str(folder), keeper.pid, dict(server.facts))


def own_folder(kind: str) -> Path:
    """An empty one for `launch`, which a server that runs as another user can reach: a test's own
    temporary folder is closed to others. It goes with the run."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-own-", dir=os.environ[FOLDER]))
    folder.chmod(0o755)
    return folder


def stop(server: SharedServer, how: int = signal.SIGTERM) -> None:
    """Ends a server that `launch` has started, with all its processes.

    SIGKILL ends them at once, those that lead a group of their own (as PostgreSQL's backends do)
    as well: none answers afterwards.
    """
    try:
        keeper = psutil.Process(server.keeper)
        if how == signal.SIGKILL:
            ended = [keeper, *keeper.children(recursive=True)]
            for process in ended:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        else:
            ended = [keeper]
            keeper.send_signal(how)
    except psutil.NoSuchProcess:
        return
    wait_until(lambda: not any(map(_is_alive, ended)), within=30)


def stop_all(run: Path) -> None:
    """Stops all servers at the end of the run."""
    for noted in run.glob("*.json"):
        stop(SharedServer(**json.loads(noted.read_text())))
    shutil.rmtree(run, ignore_errors=True)


def new_run() -> Path:
    """The folder of a run's servers, named for the processes that this one starts. They are ended
    with this one (`reaper.py`), however it ends."""
    run = Path(tempfile.mkdtemp(prefix="jet-servers-"))
    run.chmod(0o755)  # a server that runs as another user passes through
    os.environ[FOLDER] = str(run)
    os.environ["JET_TEST_CONTROLLER"] = str(os.getpid())
    subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("reaper.py")), str(os.getpid()), str(run)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return run


def wait_until(holds: Callable[[], bool], *, within: float) -> None:
    """Asks until it holds.

    Raises:
        TimeoutError: it does not hold within so many seconds; from what it has raised last.
    """
    until = time.monotonic() + within
    raised: Exception | None = None
    while time.monotonic() < until:
        try:
            if holds():
                return
        except Exception as error:
            raised = error
        time.sleep(0.1)
    raise TimeoutError(f"not within {within} s") from raised


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
