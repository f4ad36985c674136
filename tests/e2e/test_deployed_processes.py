"""The processes of `deploy/`, without its containers: they stream, and heal after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import copy

import psutil

from tests.long import long
from tests.servers import free_port, wait_until
from tests.servers.postgres import postgres

from .tiny import committed_rows

DEPLOY = Path(__file__).parents[2] / "deploy"


@contextmanager
def started(environment: dict[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the folder, until the block ends; with its children."""
    process = subprocess.Popen(command, cwd=DEPLOY, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        kill_with_children(process)


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.send_signal(signal.SIGKILL)
        process.kill()
        process.wait()


@long  # the soak under Dagster kills more
def test_the_code_server_is_killed_with_its_run(tmp_path: Path) -> None:
    home, port = tmp_path / "home", free_port()
    home.mkdir()
    copy(DEPLOY / "dagster.yaml", home)
    workspace = (DEPLOY / "workspace.yaml").read_text(encoding="utf-8")
    here = workspace.replace("host: code, port: 4000", f"host: 127.0.0.1, port: {port}")
    assert here != workspace
    (home / "workspace.yaml").write_text(here, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DAGSTER_HOME": str(home),
        **postgres().dagster_variables,
        "JET_OUTPUT": str(tmp_path / "out"),
        "JET_STORE": " ".join(f"file://{tmp_path}/{member}" for member in "abc"),
    }
    server = ["dagster", "api", "grpc", "--host", "0.0.0.0", "--port", str(port)]
    server += ["--module-name", "definitions"]

    def rows() -> int:
        return len(committed_rows(tmp_path / "out" / "highest"))

    with ExitStack() as stack:
        code = stack.enter_context(started(environment, *server))
        daemon = ("dagster-daemon", "run", "--workspace", str(home / "workspace.yaml"))
        stack.enter_context(started(environment, *daemon))
        wait_until(lambda: rows() > 0, within=240)
        kill_with_children(code)
        committed = rows()
        stack.enter_context(started(environment, *server))
        wait_until(lambda: rows() > committed, within=240)
        ends = [row["window_end"] for row in committed_rows(tmp_path / "out" / "highest")]
        assert len(ends) == len(set(ends)), "each window once"
