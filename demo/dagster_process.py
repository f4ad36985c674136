"""A Dagster instance of the demo's own: webserver and daemon in a folder that can be deleted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parent.parent

_DAGSTER_YAML = """\
telemetry:
  enabled: false
nux:
  enabled: false
# Nothing to queue behind: a run starts when it is asked for.
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
run_monitoring:
  enabled: true
  poll_interval_seconds: 15
  # Longer than the drain budget: a cancelled run needs the time for its terminal snapshot.
  cancel_timeout_seconds: 60
  free_slots_after_run_end_seconds: 10
# The supervisor sensor restarts the stream; Dagster's own retries would only race with it.
run_retries:
  enabled: false
retention:
  sensor:
    purge_after_days: {skipped: 1}
"""


class DagsterStartError(Exception):
    """`dagster dev` did not come up; the message holds the end of its log."""


@dataclass
class DagsterProcess:
    """`dagster dev` and everything it started.

    Attributes:
        home: DAGSTER_HOME; also holds the log and the process id.
        environment: what the code location reads.
        port: of the webserver; a free one by default.
    """

    home: Path
    environment: Mapping[str, str]
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _family: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_file(self) -> Path:
        return self.home / "dagster.log"

    def start(self) -> None:
        """Start it in a process group of its own, with the signal handlers Python begins with.

        A shell that starts the demo in the background makes it ignore SIGINT, children inherit
        that, and Dagster maps SIGTERM to SIGINT's handler: nothing could stop it any more.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        settings = self.home / "dagster.yaml"
        if not settings.exists():  # else somebody's own
            settings.write_text(_DAGSTER_YAML, encoding="utf-8")
        self.port = self.port or free_port()
        command = [
            sys.executable, "-m", "dagster", "dev", "--workspace", "workspace.yaml",
            "--host", "127.0.0.1", "--port", str(self.port),
        ]  # fmt: skip
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, **self.environment, "DAGSTER_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_default_signals,
            )
        self.remember_family()
        self._write_pid_file()

    def _write_pid_file(self) -> None:
        process = psutil.Process(self.pid)
        content = {"pid": self.pid, "created": process.create_time(), "url": self.url}
        (self.home / "process.json").write_text(json.dumps(content), encoding="utf-8")

    def wait_until_up(self, timeout_seconds: float = 180) -> None:
        """Wait for the webserver.

        Raises:
            DagsterStartError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if not self.is_running():
                break
            try:
                with urllib.request.urlopen(f"{self.url}/server_info", timeout=2):
                    return
            except OSError:
                time.sleep(0.25)
        raise DagsterStartError(f"`dagster dev` did not come up.\n{self.log_tail()}")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 30) -> str:
        if not self.log_file.exists():
            return ""
        text = self.log_file.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def remember_family(self) -> None:
        """Note all processes under ours, so that those it leaves behind can be ended one by one."""
        assert self._process is not None
        try:
            root = psutil.Process(self._process.pid)
            for process in [root, *root.children(recursive=True)]:
                self._family[process.pid] = process
        except psutil.NoSuchProcess:
            return

    def is_ours(self, pid: int) -> bool:
        """Whether a process was started by this instance (and its id was not reused since)."""
        self.remember_family()
        return pid in self._family and self._family[pid].is_running()

    def stop(self) -> None:
        """Interrupt `dagster dev`, then end what is left of its processes, by their ids."""
        if self._process is None:
            return
        self.remember_family()
        end_processes(list(self._family.values()), root=self._process.pid)
        self._process.wait(timeout=10)


def end_processes(processes: list[psutil.Process], *, root: int) -> None:
    """SIGINT to the root, then SIGTERM and at last SIGKILL to each that is still there.

    `psutil` compares start times, so a reused process id is never signalled.
    """
    first = [process for process in processes if process.pid == root]
    for signal_number, group, patience in (
        (signal.SIGINT, first, 20),
        (signal.SIGTERM, processes, 10),
        (signal.SIGKILL, processes, 5),
    ):
        for process in group:
            try:
                process.send_signal(signal_number)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(group, timeout=patience)
        processes = [p for p in processes if _is_running(p)]
        if not processes:
            return


def stop_kept(home: Path) -> bool:
    """Stop a Dagster that an earlier ``KEEP=1`` left running; return whether there was one."""
    note = home / "process.json"
    if not note.exists():
        return False
    content = json.loads(note.read_text(encoding="utf-8"))
    note.unlink()
    try:
        root = psutil.Process(content["pid"])
        if abs(root.create_time() - content["created"]) > 0.01:
            return False
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return False
    end_processes(family, root=root.pid)
    return True


class GraphqlError(Exception):
    """The webserver answered with errors, or not at all."""


def graphql(url: str, query: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Ask the webserver what a browser would ask it.

    Raises:
        GraphqlError: no answer, or one with errors.
    """
    body = json.dumps({"query": query, "variables": dict(variables or {})}).encode()
    request = urllib.request.Request(
        f"{url}/graphql", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=15) as response:
            answer = json.loads(response.read())
    except OSError as error:
        raise GraphqlError(str(error)) from error
    if answer.get("errors"):
        raise GraphqlError(str(answer["errors"]))
    data: dict[str, Any] = answer["data"]
    return data


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As a server does: connections of one that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
