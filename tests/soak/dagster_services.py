"""Dagster as it is deployed: webserver, daemon and code server, each brought back when it is dead.

`dagster dev` ends when one of its processes does. Where it matters there is something that starts
them anew (systemd, Kubernetes); here it is a thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import dagster as dg
import psutil

from demo.dagster_process import REPOSITORY

from ..servers import free_port

SERVICES = ("webserver", "daemon", "code server")
RESTART_SECONDS = 1.0
ON_POSTGRES = (REPOSITORY / "deploy" / "dagster.yaml").read_text(encoding="utf-8")
ON_SQLITE = """\
telemetry: {enabled: false}
nux: {enabled: false}
run_monitoring: {enabled: true, poll_interval_seconds: 15, cancel_timeout_seconds: 60}
"""


class DagsterServices:
    """Three processes, and all that they have started: run workers outlive their code server.

    Args:
        home: DAGSTER_HOME; also holds a log for each service.
        definitions: the Python file with the definitions.
        environment: what the code location reads. One of its names and values marks the processes.
        mark: that name.
        settings: `ON_SQLITE` or `ON_POSTGRES`: the text of `dagster.yaml`.
    """

    def __init__(
        self,
        home: Path,
        definitions: Path,
        environment: Mapping[str, str],
        mark: str,
        settings: str,
    ) -> None:
        self.home, self._mark = home, mark
        self._environment = {**os.environ, **environment, "DAGSTER_HOME": str(home)}
        home.mkdir(parents=True)
        (home / "dagster.yaml").write_text(settings, encoding="utf-8")
        code_port = free_port()
        workspace = home / "workspace.yaml"
        workspace.write_text(
            f"load_from:\n  - grpc_server: {{host: 127.0.0.1, port: {code_port}, "
            "location_name: soak}\n",
            encoding="utf-8",
        )
        web_port = free_port()
        self._commands = {
            "webserver": (
                f"dagster_webserver --host 127.0.0.1 --port {web_port} --workspace {workspace}"
            ).split(),
            "daemon": f"dagster._daemon run --workspace {workspace}".split(),
            "code server": (
                f"dagster code-server start --host 127.0.0.1 --port {code_port} "
                f"--python-file {definitions} --working-directory {REPOSITORY} "
                "--location-name soak"
            ).split(),
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        # The instance's databases first: three processes that make them at once break them.
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            instance.all_instigator_state()
            instance.get_run_records(limit=1)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._stopping.is_set():
            for service in SERVICES:
                process = self._running.get(service)
                if process is None or process.poll() is not None:
                    self._running[service] = self._launch(service)
            self._stopping.wait(RESTART_SECONDS)

    def _launch(self, service: str) -> subprocess.Popen[bytes]:
        with open(self.home / f"{service.replace(' ', '-')}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *self._commands[service]],
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def running(self) -> dict[str, psutil.Process]:
        return {
            service: psutil.Process(process.pid)
            for service, process in list(self._running.items())
            if process.poll() is None
        }

    def kill(self, service: str) -> bool:
        """SIGKILL to a service; False if it is down already."""
        process = self._running.get(service)
        if process is None or process.poll() is not None:
            return False
        process.kill()
        process.wait()
        return True

    def family(self) -> Iterator[psutil.Process]:
        """All living processes of this Dagster, those included that have lost their parents."""
        value = self._environment[self._mark]
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.pid != os.getpid() and process.environ().get(self._mark) == value:
                    yield process

    def stop(self) -> None:
        """SIGKILL to all: the last outage, from which plain code goes on."""
        self._stopping.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        deadline = time.monotonic() + 30
        while family := list(self.family()):  # a process may be starting another one
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            for service in self._running.values():
                service.poll()  # reaps it
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot be killed: {family}")
            time.sleep(0.1)
