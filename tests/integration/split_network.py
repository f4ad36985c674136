"""A network that can be split: a TCP proxy at the address of each Redis server.

Everybody uses the same addresses, so that the members have one id each. Who somebody is, the proxy
sees from the user name a connection begins with, which is no part of a member's id.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from tests.servers.members import RedisServer

SIDES = ("left", "right")
_PASSWORD, _PASSWORD_ENV = "pw", "JET_TEST_PASSWORD"
PASSWORD_IN = {_PASSWORD_ENV: _PASSWORD}
"""Variables that the environment of drivers and workers must hold."""
_USER = re.compile(rb"AUTH\r\n\$\d+\r\n(\w+)\r\n")


class Link:
    """The way to one server; closed to some."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._blocked: set[str] = set()
        self._open: dict[socket.socket, str] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, side: str) -> str:
        address = f"{side}@127.0.0.1:{self._port}/0?password_env={_PASSWORD_ENV}"
        return f"redis://{address}&connect_timeout=0.5&timeout=1"

    def block(self, side: str) -> None:
        """Ends the side's connections; new ones are reset as soon as it is known whose they are."""
        with self._lock:
            self._blocked.add(side)
            for client in [client for client, user in self._open.items() if user == side]:
                _shut(client)

    def heal(self) -> None:
        with self._lock:
            self._blocked.clear()

    def close(self) -> None:
        _shut(self._listener)  # ends the wait in accept
        self._listener.close()
        with self._lock:
            for client in self._open:
                _shut(client)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            begin = client.recv(65_536)
            found = _USER.search(begin)
            if found is None or not self._admit(client, found[1].decode()):
                return
            try:
                with socket.create_connection(("127.0.0.1", self._server_port)) as server:
                    server.sendall(begin)
                    back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                    back.start()
                    _pump(client, server)
                    back.join()
            finally:
                with self._lock:
                    del self._open[client]

    def _admit(self, client: socket.socket, user: str) -> bool:
        with self._lock:
            if user in self._blocked:
                return False
            self._open[client] = user
            return True


class Network:
    """The ways to all servers."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links

    def urls(self, side: str) -> list[str]:
        return [link.url(side) for link in self._links]

    def split(self, left: int) -> None:
        """Splits the members: some can be reached from the left only, the others from the right
        only."""
        for at, link in enumerate(self._links):
            link.block("right" if at < left else "left")

    def heal(self) -> None:
        for link in self._links:
            link.heal()


@contextmanager
def network(servers: int) -> Iterator[Network]:
    users = tuple(f"user {side} on >{_PASSWORD} ~* &* +@all" for side in SIDES)
    with ExitStack() as stack:
        links = []
        for _ in range(servers):
            server = stack.enter_context(RedisServer(settings=users))
            link = Link(server.port)
            stack.callback(link.close)
            links.append(link)
        yield Network(links)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
