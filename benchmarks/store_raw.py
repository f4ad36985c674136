"""Baseline for the store: the same bytes by nothing but a file or a socket.

Files as `dd bs=1M conv=fsync` writes them; SETs as `redis-benchmark -P 16` sends them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dagster_jet.snapshot.manifest import checksum

_BLOCK_BYTES = 2**20
_PIPELINED = 16
_COPIED_BYTES = 16 * 1024
"""Below, copying is cheaper than one more system call."""
_HOST = "127.0.0.1"


def write_file(path: Path, bodies: Iterable[bytes]) -> None:
    """All bodies behind each other in blocks, and one sync of the file at the end."""
    with open(path, "wb", buffering=0) as file:
        for body in bodies:
            view = memoryview(body)
            for at in range(0, len(view), _BLOCK_BYTES):
                file.write(view[at : at + _BLOCK_BYTES])
        os.fsync(file.fileno())


def read_file(path: Path, sizes: Sequence[int]) -> list[int]:
    with open(path, "rb", buffering=0) as file:
        return [checksum(file.read(size)) for size in sizes]


class RawRedis:
    """One connection that speaks the protocol and nothing else."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((_HOST, port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb", buffering=2**16)

    def set_all(self, items: Mapping[str, bytes]) -> None:
        """SETs, 16 before their answers are read; large bodies are sent from where they are."""
        waiting, small = 0, bytearray()
        for key, body in items.items():
            name = key.encode()
            small += b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, len(body))
            if len(body) < _COPIED_BYTES:
                small += body
            else:
                self._socket.sendall(small)
                self._socket.sendall(body)
                small.clear()
            small += b"\r\n"
            waiting += 1
            if waiting == _PIPELINED:
                self._flush(small, waiting)
                waiting = 0
        self._flush(small, waiting)

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """GETs, 16 before their answers are read."""
        found: list[bytes | None] = []
        for at in range(0, len(keys), _PIPELINED):
            names = [key.encode() for key in keys[at : at + _PIPELINED]]
            self._socket.sendall(
                b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(n), n) for n in names)
            )
            found += [self._value() for _ in names]
        return found

    def _value(self) -> bytes | None:
        size = int(self._answers.readline()[1:])
        return None if size < 0 else self._answers.read(size + 2)[:-2]

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def _flush(self, small: bytearray, answers: int) -> None:
        self._socket.sendall(small)
        small.clear()
        for _ in range(answers):
            answer = self._answers.readline()
            if answer != b"+OK\r\n":
                raise AssertionError(f"redis-server answered {answer!r}")


def set_raw(port: int, items: Mapping[str, bytes]) -> None:
    connection = RawRedis(port)
    try:
        connection.set_all(items)
    finally:
        connection.close()


def get_raw(port: int, keys: Sequence[str]) -> list[int]:
    connection = RawRedis(port)
    try:
        groups = (keys[at : at + _PIPELINED] for at in range(0, len(keys), _PIPELINED))
        return [checksum(body or b"") for group in groups for body in connection.get_all(group)]
    finally:
        connection.close()
