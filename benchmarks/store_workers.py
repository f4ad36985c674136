"""Processes that write and read shards, as Spark's executors do; the driver only tells them to.

Each holds one shard and does one thing at a time, timed by itself on the clock that all processes
of a host share: what lies between the first one's beginning and the last one's end is the time.
"""

from __future__ import annotations

import mmap
import multiprocessing
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

from benchmarks.store_raw import get_raw, read_file, set_raw, write_file
from benchmarks.store_state import ROW_BYTES, Share, fingerprint
from dagster_jet.snapshot.manifest import ChunkSet, checksum
from dagster_jet.snapshot.storage.chains import read_chain
from dagster_jet.snapshot.storage.chunks import (
    ChunkMap,
    ChunkSetName,
    write_chunk_set,
)
from dagster_jet.store import MapKey, Payload, StoreHandle

MAP = "chunks"
_VERTEX = "counts"
_ANSWER_SECONDS_MAX = 600
_END_SECONDS_MAX = 10
_MEMORY_PER_BYTE = 3
"""Memory per byte of state: as chunks, as LMDB's new pages, as the kernel's."""


class WorkerFailedError(Exception):
    """A worker raised; the message has its traceback."""


@dataclass(frozen=True)
class Done:
    """One worker's part. `store_s` is what was spent in calls of the map alone, `cpu_s` what all
    of the worker's threads have worked, in the kernel too."""

    began: float
    ended: float
    result: Any
    store_s: float = 0.0
    cpu_s: float = 0.0


class Workers:
    """Worker processes, one per shard; a context manager that ends them."""

    def __init__(self, state_bytes: int, shards: int, partition_count: int) -> None:
        self.shares = [Share(at, shards, state_bytes, partition_count) for at in range(shards)]
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Workers:
        context = multiprocessing.get_context("spawn")  # nothing of the driver is carried over
        try:
            for share in self.shares:
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(there, share), daemon=True)
                process.start()
                there.close()
                self._processes.append(process)
                self._pipes.append(here)
            self.together("ready")
        except BaseException:
            self.close()
            raise
        return self

    def together(self, command: str, *common: Any, each: Sequence[Any] = ()) -> list[Done]:
        """One command on all workers at once, and their answers, by shard."""
        for at, pipe in enumerate(self._pipes):
            pipe.send((command, (*common, *([each[at]] if each else []))))
        return [self._answer(pipe) for pipe in self._pipes]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_END_SECONDS_MAX)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, pipe: Connection) -> Done:
        try:
            if not pipe.poll(_ANSWER_SECONDS_MAX):
                raise WorkerFailedError(f"a worker was silent for {_ANSWER_SECONDS_MAX} s")
            answer = pipe.recv()
        except EOFError:
            raise WorkerFailedError("a worker ended before it had answered") from None
        if isinstance(answer, str):
            raise WorkerFailedError(answer)
        return answer


def seconds(parts: Sequence[Done]) -> float:
    return max(part.ended for part in parts) - min(part.began for part in parts)


@dataclass
class _TimedMap:
    """A map that knows for how long at least one of its callers has waited for it."""

    inner: ChunkMap
    seconds: float = 0.0
    _waiting: int = 0
    _since: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def put_all(self, items: Iterable[tuple[MapKey, Payload]]) -> None:
        with self._timed():
            self.inner.put_all(self._without_their_making(iter(items)))

    def get_all(self, keys: Sequence[MapKey], *, every_replica: bool = False) -> list[bytes | None]:
        with self._timed():
            return self.inner.get_all(keys, every_replica=every_replica)

    def _without_their_making(
        self, items: Iterator[tuple[MapKey, Payload]]
    ) -> Iterator[tuple[MapKey, Payload]]:
        """The items, made as the map asks for them; not the map's time."""
        while True:
            self._leave()
            try:
                item = next(items, None)
            finally:
                self._enter()
            if item is None:
                return
            yield item

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if self._waiting == 0:
                self._since = time.monotonic()
            self._waiting += 1

    def _leave(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting == 0:
                self.seconds += time.monotonic() - self._since


@dataclass
class _Kept:
    """Keeps what a snapshot would put: the bytes that the raw writers write."""

    items: dict[MapKey, bytes] = field(default_factory=dict)

    def put_all(self, items: Iterable[tuple[MapKey, Payload]]) -> None:
        self.items.update((key, bytes(body)) for key, body in items)

    def get_all(self, keys: Sequence[MapKey], *, every_replica: bool = False) -> list[bytes | None]:
        return [self.items.get(key) for key in keys]


class _Worker:
    """Commands of a worker; every method returns the fields of `Done`."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._table = share.table()
        self._raw: dict[str, bytes] = {}

    def ready(self) -> Done:
        """Rows and fingerprint of the shard."""
        return Done(0.0, 0.0, fingerprint(self._table))

    def warm_memory(self) -> Done:
        """Makes the chunks once, and takes and gives back the memory that a snapshot needs.

        Earlier snapshots have done both. A virtual machine may have to ask its host for memory that
        it has not used for a while, and only one engine would pay for that.
        """
        self._write(_Kept())
        size = _MEMORY_PER_BYTE * self._share.rows * ROW_BYTES
        with mmap.mmap(-1, size) as memory:
            for at in range(0, size, mmap.PAGESIZE):
                memory[at] = 1
        return Done(0.0, 0.0, None)

    def warm_up(self, handle: StoreHandle) -> Done:
        """Writes and reads the shard once, into a map of its own, as an earlier snapshot has."""
        chunks = handle.map("warm-up")
        read_chain(
            chunks,
            [self._write(chunks)],
            vertex=_VERTEX,
            partition_count=self._share.partition_count,
        )
        return Done(0.0, 0.0, None)

    def snapshot(self, handle: StoreHandle) -> Done:
        """Writes the shard as the tasks of an epoch with a barrier do."""
        began = time.monotonic()
        chunks = _TimedMap(handle.map(MAP))
        written = self._write(chunks)
        return Done(began, time.monotonic(), written, chunks.seconds)

    def restore(self, handle: StoreHandle, sets: Sequence[ChunkSet]) -> Done:
        """Reads the next worker's shard by partition, as a restore at any parallelism does."""
        shard = (self._share.shard + 1) % self._share.shards
        count = self._share.partition_count
        wanted = frozenset(range(shard, count, self._share.shards))
        began = time.monotonic()
        chunks = _TimedMap(handle.map(MAP))
        table = read_chain(
            chunks, [sets[shard]], vertex=_VERTEX, partition_count=count, wanted=wanted
        )
        ended = time.monotonic()
        return Done(began, ended, (shard, fingerprint(table)), chunks.seconds)

    def serialise(self) -> Done:
        """Makes the bytes that a snapshot writes; how many they are."""
        kept = _Kept()
        self._write(kept)
        self._raw = {f"{key.partition:04d}/{key.name}": body for key, body in kept.items.items()}
        return Done(0.0, 0.0, sum(map(len, self._raw.values())))

    def write_file(self, path: Path) -> Done:
        began = time.monotonic()
        write_file(path, self._raw.values())
        return Done(began, time.monotonic(), None)

    def read_file(self, path: Path) -> Done:
        """Reads it back, with checksums; raises unless all of it is right."""
        began = time.monotonic()
        sums = read_file(path, [len(body) for body in self._raw.values()])
        ended = time.monotonic()
        self._check(sums)
        return Done(began, ended, None)

    def set_raw(self, ports: Sequence[int]) -> Done:
        began = time.monotonic()
        self._on_each(ports, set_raw)
        return Done(began, time.monotonic(), None)

    def get_raw(self, ports: Sequence[int]) -> Done:
        """Reads back, with checksums; raises unless all of it is right."""
        began = time.monotonic()
        sums = self._on_each(ports, lambda port, part: get_raw(port, list(part)))
        ended = time.monotonic()
        self._check([sums[at % len(ports)][at // len(ports)] for at in range(len(self._raw))])
        return Done(began, ended, None)

    def _on_each(self, ports: Sequence[int], work: Any) -> list[Any]:
        """Every server has its share of the keys and a thread of its own."""
        items = list(self._raw.items())
        parts = [dict(items[at :: len(ports)]) for at in range(len(ports))]
        with ThreadPoolExecutor(len(ports)) as threads:
            return list(threads.map(work, ports, parts))

    def _write(self, chunks: ChunkMap) -> ChunkSet:
        return write_chunk_set(
            chunks,
            ChunkSetName(_VERTEX, 1, 1, self._share.shard, "a"),
            self._table,
            self._share.partitions,
            sequence=0,
            is_base=True,
            partition_count=self._share.partition_count,
        )

    def _check(self, sums: Sequence[int]) -> None:
        if list(sums) != [checksum(body) for body in self._raw.values()]:
            raise AssertionError("the raw writer's bytes are not what was written")


def _serve(pipe: Connection, share: Share) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ends when the driver closes the pipe
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        worker: _Worker | None = None
        while True:
            command, arguments = pipe.recv()
            try:
                worker = worker or _Worker(share)
                cpu_s = time.process_time()
                answer = getattr(worker, command)(*arguments)
                answer = replace(answer, cpu_s=time.process_time() - cpu_s)
            except Exception:  # noqa: BLE001 - whatever it is, the driver reports it
                answer = traceback.format_exc()
            pipe.send(answer)
