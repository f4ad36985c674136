"""A test server is one per run, and ends with the run, however that ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.long import long
from tests.servers import ToStart, free_port, shared_server, stop, wait_until
from tests.servers.shared import FOLDER, launch

SECOND = """
import sys
from tests.servers import shared_server
print(shared_server("listening", lambda folder: sys.exit("started twice")).keeper)
"""
RUN_OF_ITS_OWN = """
import os, time
from pathlib import Path
from tests.servers.shared import new_run, shared_server
from tests.unit.servers.test_shared import listening
new_run()
print(shared_server("listening", listening).facts["port"], flush=True)
time.sleep(60)
"""

CHILD_OF_ITS_OWN_SESSION = """
import subprocess, sys
subprocess.run(sys.argv[1:], start_new_session=True)
"""


def listening(folder: Path) -> ToStart:
    port = free_port()
    assert not list(folder.glob("data"))
    (folder / "data").touch()
    return ToStart(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        lambda: answers(port),
        {"port": port},
    )


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def test_the_second_process_gets_the_first_ones_server(run):
    server = shared_server("listening", listening)
    try:
        assert answers(server.facts["port"])
        second = subprocess.run(
            [sys.executable, "-c", SECOND], capture_output=True, text=True, check=True
        )
        assert int(second.stdout) == server.keeper
        assert shared_server("listening", listening) == server
    finally:
        stop(server)
    assert not answers(server.facts["port"])


def test_a_server_killed_at_once_is_gone(run):
    """One of its processes has left its group, as a backend of PostgreSQL does."""
    started = listening(run)
    command = [sys.executable, "-c", CHILD_OF_ITS_OWN_SESSION, *started.command]
    server = launch("listening", run, replace(started, command=command))
    stop(server, signal.SIGKILL)
    assert not answers(server.facts["port"])


def test_what_does_not_start_says_why(run):
    def broken(folder):
        return ToStart([sys.executable, "-c", "raise SystemExit('no disk')"], lambda: False, {})

    with pytest.raises(RuntimeError, match=r"broken does not start: .*\n.*no disk"):
        shared_server("broken", broken)
    server = shared_server("broken", listening)  # the next one may try again
    stop(server)


def test_servers_end_with_a_run_that_is_killed():
    run = subprocess.Popen(
        [sys.executable, "-c", RUN_OF_ITS_OWN],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={k: v for k, v in os.environ.items() if not k.startswith("JET_TEST_")},
    )
    port = int(run.stdout.readline())
    assert answers(port)
    run.kill()
    run.wait()
    wait_until(lambda: not answers(port), within=20)


CUT_OFF = """
import os, subprocess, sys, time

def test_it():
    command = [sys.executable, "-c", "import time; time.sleep(100)"]
    child = subprocess.Popen(command, start_new_session=True)
    print("started", child.pid, os.environ["JET_TEST_SERVERS"], flush=True)
    time.sleep(60)
"""


@long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_cut_off_run_has_started_ends(tmp_path: Path, how: int) -> None:
    """Failed before: browsers, webservers and warm-up processes stayed, and slowed what came."""
    (tmp_path / "test_cut_off.py").write_text(CUT_OFF)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    # A run of its own, also where this test runs in one of pytest-xdist's workers.
    paths = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    paths["PYTHONPATH"] = str(root)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=paths
    ) as run:
        assert run.stdout is not None
        said = next(line for line in run.stdout if "started" in line)
        child, folder = said.split("started ")[1].split()
        assert Path(folder).is_dir() and Path("/proc", child).exists()
        run.send_signal(how)
    try:
        wait_until(lambda: not Path("/proc", child).exists(), within=15)
        wait_until(lambda: not Path(folder).exists(), within=15)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
