"""Hosts of a cluster on one machine: each has a network namespace and a folder of its own.

All are on one bridge. The namespace of the caller is the host of the driver, of the master and of
the servers; each worker of Spark is a host. A host that is cut off gets no packet any more, and
nobody hears that its connections have ended.

    python -m tests.integration.hosts <number> <folder> <url of the master>
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .standalone import worker
from .world import wait_until

DRIVER = "10.77.0.1"
_BRIDGE = "hosts"


def as_a_host(command: Sequence[str]) -> list[str]:
    """A command in a network and a mount namespace of its own."""
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *rights, "--net", "--mount", *command]


@dataclass(frozen=True)
class Host:
    """A worker."""

    number: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return _address(self.number)

    def cut_off(self) -> None:
        _ip("link", "set", _port(self.number), "down")

    def reconnect(self) -> None:
        _ip("link", "set", _port(self.number), "up")


@contextmanager
def hosts(logs: Path, own: Path, url: str, count: int) -> Iterator[list[Host]]:
    """Starts workers.

    Args:
        logs: folder of their logs.
        own: a folder that is empty on each of the hosts.
        url: of the master.
        count: number of workers.
    """
    started: list[Host] = []
    try:
        for number in range(1, count + 1):
            command = [sys.executable, "-m", __spec__.name, f"{number}", str(own), url]
            with open(logs / f"host-{number}.log", "wb") as log:
                process = subprocess.Popen(as_a_host(command), stdout=log, stderr=log)
            started.append(Host(number, process))
            wait_until(lambda one=process: _has_own_network(one.pid), "the host has a network")
            near, far = _port(number), f"far-{number}"
            _ip("link", "add", near, "type", "veth", "peer", "name", far)
            _ip("link", "set", far, "netns", f"{process.pid}")
            _ip("link", "set", near, "master", _BRIDGE, "up")
        yield started
    finally:
        for host in started:
            host.process.terminate()
        for host in started:
            host.process.wait(30)


def be_the_driver() -> None:
    """Makes the caller's network namespace the host of the driver."""
    _ip("link", "set", "lo", "up")
    _ip("link", "add", _BRIDGE, "type", "bridge")
    _ip("addr", "add", f"{DRIVER}/24", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")


def _be_a_worker(number: int, own: Path, url: str) -> None:
    """Becomes the worker, once its end of the link is there."""
    far = f"far-{number}"
    wait_until(lambda: Path("/proc/net/dev").read_text().count(f"{far}:") == 1, "the link")
    _ip("link", "set", "lo", "up")
    _ip("addr", "add", f"{_address(number)}/24", "dev", far)
    _ip("link", "set", far, "up")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(own)], check=True)
    command, environment = worker(url, _address(number), own / "work")
    folders = dict.fromkeys(("TMPDIR", "SPARK_LOCAL_DIRS"), str(own))
    os.execvpe(command[0], command, {**environment, **folders})


def _has_own_network(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def _address(number: int) -> str:
    return f"10.77.0.{10 + number}"


def _port(number: int) -> str:
    """The driver's end of a host's link."""
    return f"host-{number}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":
    _be_a_worker(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
