"""Store members that fail chosen calls in a chosen way: proxies in front of Redis servers, so that
drivers and tasks in all processes meet the same."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import unquote

from dagster_jet.snapshot.store_reactions import Condition
from dagster_jet.store.map.stored_key import map_of
from dagster_jet.store.members import redis
from dagster_jet.store.members.redis_client import Script

_SCRIPTS = {
    redis._PUT.digest: "put",
    redis._DELETE.digest: "delete",
    redis._REPLACE.digest: "replace",
    redis._COMPARE_AND_SET.digest: "set",
    redis._GET_VERSIONED.digest: "read",
}
_SAYS = {
    Condition.FULL: b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    Condition.READ_ONLY: b"-READONLY You can't write against a read only replica.\r\n",
}
_KEYS_FROM = 5
"""Position of the keys in a script's request: name, digest, how many keys, place, sorted set, then
the keys."""


@dataclass(frozen=True)
class Asked:
    """One key of a request to a member."""

    operation: str
    """put, get, delete, replace (of a value); read, set (of a register)."""
    map: str
    """Name of the map; for a register, its own name."""
    partition: int
    name: str


@dataclass
class Fault:
    """Response of one or several members to the requests that have such a key."""

    is_meant: Callable[[Asked], bool]
    condition: Condition
    members: Callable[[Asked], Sequence[str]]
    """Members that fail the request."""
    met: set[Asked] = field(default_factory=set)
    asked: threading.Event = field(default_factory=threading.Event)
    """Set once it was met."""
    released: threading.Event = field(default_factory=threading.Event)
    """Event for which SLOW waits."""


class FailingMembers:
    """Proxies in front of servers; each is a member of a store.

    Example:
        >>> with FailingMembers([server.port for server in servers]) as members:
        ...     with members.failing(is_manifest, Condition.FULL) as fault:
        ...         fault.asked.wait(60)
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._faults: list[Fault] = []
        self._is_closed = False
        self._listening = []
        self.urls = []
        for port in ports:
            listening = socket.create_server(("127.0.0.1", 0))
            self._listening.append(listening)
            own = listening.getsockname()[1]
            self.urls.append(f"redis://127.0.0.1:{own}/0")
            work = (listening, self.urls[-1], port)
            threading.Thread(target=self._accept, args=work, daemon=True).start()

    def __enter__(self) -> FailingMembers:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

    @contextmanager
    def failing(
        self,
        is_meant: Callable[[Asked], bool],
        condition: Condition,
        members: Callable[[Asked], Sequence[str]],
    ) -> Iterator[Fault]:
        fault = Fault(is_meant, condition, members)
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)
            fault.released.set()

    def _accept(self, listening: socket.socket, url: str, port: int) -> None:
        while not self._is_closed:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, url, port), daemon=True).start()

    def _serve(self, client: socket.socket, url: str, port: int) -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.ExitStack() as stack:
            stack.enter_context(client)
            server = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            requests, answers = client.makefile("rb"), server.makefile("rb")
            while True:
                request = _read(requests)
                fault, meant = self._fault_for(request, url)
                if fault is not None:
                    fault.met |= meant.keys()
                    fault.asked.set()
                    if fault.condition is Condition.AWAY:
                        return
                    if fault.condition is Condition.SLOW:
                        fault.released.wait(60)
                    if fault.condition in _SAYS:
                        client.sendall(_SAYS[fault.condition])
                        continue
                is_damaged = fault is not None and fault.condition is Condition.DAMAGED
                if is_damaged:
                    request = _with_damage(request, list(meant.values()))
                server.sendall(_written(request))
                answer = _read(answers)
                if is_damaged and not isinstance(answer, bytes):
                    answer = _with_damaged_answer(request, answer, list(meant.values()))
                client.sendall(_written(answer))

    def _fault_for(self, request: Any, url: str) -> tuple[Fault | None, dict[Asked, int]]:
        keys = _keys_of(request)
        for fault in list(self._faults):
            meant = {a: n for a, n in keys.items() if fault.is_meant(a) and url in fault.members(a)}
            if meant:
                return fault, meant
        return None, {}


def _keys_of(request: list[bytes]) -> dict[Asked, int]:
    """The keys that a request is about, and their numbers in it."""
    command = request[0].upper()
    if command == b"MGET":
        return {_asked("get", key): n for n, key in enumerate(request[1:])}
    if command == b"SET":
        return {_asked("put", request[1]): 0}
    if command not in (b"EVALSHA", b"EVAL"):
        return {}
    sources = {script.source.encode(): script.digest for script in vars(redis).values()
               if isinstance(script, Script)}  # fmt: skip
    digest = sources.get(request[1], request[1].decode("latin-1"))
    operation = _SCRIPTS.get(digest)
    if operation is None:
        return {}
    first = _KEYS_FROM - 1 if operation == "read" else _KEYS_FROM
    keys = request[first : 3 + int(request[2])]
    return {_asked(operation, key): n for n, key in enumerate(keys)}


def _asked(operation: str, key: bytes) -> Asked:
    _, kind, stored = key.split(b":", 2)
    if kind == b"r":
        return Asked(operation, unquote(stored.decode()), 0, "")
    *_, partition, name = stored.decode().split("/", 4)
    return Asked(operation, map_of(stored), int(partition), name)


def _with_damage(request: list[bytes], numbers: list[int]) -> list[bytes]:
    """The values that are written under these keys, with a wrong byte."""
    if request[0].upper() == b"SET":
        return [*request[:2], _flipped(request[2])]
    if request[0].upper() == b"MGET":
        return request
    changed, operation = list(request), _operation(request)
    if operation == "set":
        changed[-1] = _flipped(changed[-1])
    elif operation in ("put", "replace"):
        first = 3 + int(request[2]) + 2  # behind the token, and what is to be skipped
        of_one = 1 if operation == "put" else 3  # with what is seen, the value is the third
        for number in numbers:
            at = first + of_one * (number + 1) - 1
            changed[at] = _flipped(changed[at])
    return changed


def _with_damaged_answer(request: list[bytes], answer: Any, numbers: list[int]) -> Any:
    if not isinstance(answer, list) or request[0].upper() != b"MGET":
        return answer
    return [
        _flipped(one) if n in numbers and isinstance(one, bytes) else one
        for n, one in enumerate(answer)
    ]


def _operation(request: list[bytes]) -> str:
    [operation] = {asked.operation for asked in _keys_of(request)}
    return operation


def _flipped(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


class _Line(bytes):
    """An answer of one line, as it came."""


def _read(stream: BinaryIO) -> Any:
    line = stream.readline()
    if not line:
        raise EOFError
    kind, count = line[:1], line[1:-2]
    if kind == b"$":
        return None if count == b"-1" else stream.read(int(count) + 2)[:-2]
    if kind == b"*" and count != b"-1":
        return [_read(stream) for _ in range(int(count))]
    return _Line(line)


def _written(value: Any) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, _Line):
        return bytes(value)
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(_written, value))
    return b"$%d\r\n%b\r\n" % (len(value), value)
