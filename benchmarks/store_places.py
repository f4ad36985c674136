"""Places of members and of their raw counterparts: folders on one disk, servers on one host."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks.store_workers import Done, Workers
from tests.servers.members import RedisServer

MEMBERS = 3


class Places(ABC):
    """Three members of one kind; a context manager that leaves nothing behind."""

    kind: str
    ports: tuple[int, ...] = ()
    """Ports of servers on this host that a raw client may use; empty if there are no servers."""

    @property
    @abstractmethod
    def urls(self) -> tuple[str, ...]:
        """The members' URLs."""

    def cpu_s(self) -> float:
        """CPU seconds of the servers since they were started."""
        return 0.0

    @abstractmethod
    def clear(self) -> None:
        """Make all of them as if they had never been used."""

    @abstractmethod
    def lose(self, at: int) -> None:
        """Take from one member all it holds; it answers on."""

    @abstractmethod
    def write_raw(self, workers: Workers, *, warm_up: bool = False) -> list[Done]:
        """Write the serialised shards without the store; to warm up, elsewhere where that is
        possible."""

    @abstractmethod
    def read_raw(self, workers: Workers) -> list[Done]:
        """Read and check what `write_raw` has written."""

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class Folders(Places):
    """`file://` members; the raw counterpart is one fsynced file per process."""

    kind = "file"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folders = [folder / f"member-{at}" for at in range(MEMBERS)]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"file://{folder}" for folder in self._folders)

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def lose(self, at: int) -> None:
        shutil.rmtree(self._folders[at])

    def write_raw(self, workers: Workers, *, warm_up: bool = False) -> list[Done]:
        return workers.together("write_file", each=self._files(workers, warm_up=warm_up))

    def read_raw(self, workers: Workers) -> list[Done]:
        return workers.together("read_file", each=self._files(workers))

    def _files(self, workers: Workers, *, warm_up: bool = False) -> list[Path]:
        name = "warm-up" if warm_up else "raw"
        return [self._folder / f"{name}-{share.shard}" for share in workers.shares]


class Servers(Places):
    """`redis://` members without persistence; the raw counterpart are SETs to the same servers."""

    kind = "redis"

    def __init__(self) -> None:
        self._servers: list[RedisServer] = []
        self._open = ExitStack()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self._servers)

    def cpu_s(self) -> float:
        return sum(sum(psutil.Process(server.pid).cpu_times()[:2]) for server in self._servers)

    def clear(self) -> None:
        for server in self._servers:
            server.restart(empty=True)

    def lose(self, at: int) -> None:
        self._servers[at].restart(empty=True)

    def write_raw(self, workers: Workers, *, warm_up: bool = False) -> list[Done]:
        return workers.together("set_raw", self.ports)

    def read_raw(self, workers: Workers) -> list[Done]:
        return workers.together("get_raw", self.ports)

    def __enter__(self) -> Servers:
        with ExitStack() as opened:
            for _ in range(MEMBERS):
                self._servers.append(opened.enter_context(RedisServer()))
            self.ports = tuple(server.port for server in self._servers)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def places_of(kind: str, folder: Path) -> Places:
    return Servers() if kind == Servers.kind else Folders(folder / "places")
