"""A TCP proxy in this process that can be cut and restored: what a bad network does to a client."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CHUNK = 1 << 16
_ANSWER_S = 30
_EXPECTS = b"\r\nExpect: 100-continue\r\n"


class HeldRequest:
    """The next request that matches, kept back by a `Proxy`: it arrives when it is released.

    Its client's connection is reset, so that it asks again on a new one, or falls silent. The
    server's side of it stays open, so that the request is still good when it arrives.
    """

    def __init__(self, is_it: Callable[[bytes], bool], resets: bool) -> None:
        self._is_it, self._resets = is_it, resets
        self._lock = threading.Lock()
        self._caught = threading.Event()
        self._client: socket.socket | None = None
        self._server: socket.socket | None = None
        self._request = b""

    @property
    def is_caught(self) -> bool:
        return self._caught.is_set()

    def wait(self, within: float = 60) -> None:
        """Waits until a request is held. Raises `TimeoutError`."""
        if not self._caught.wait(within):
            raise TimeoutError(f"no such request within {within} s")

    def release(self, *, is_answered: bool = True) -> bytes:
        """Lets the request arrive. Returns the server's answer, so that it has been carried out;
        empty where the server has hung up, or does not answer such requests."""
        with self._lock:
            server, self._server = self._server, None
        if server is None:
            raise LookupError("no request is held")
        with server:
            try:
                server.settimeout(_ANSWER_S)
                server.sendall(self._request)
                return server.recv(_CHUNK) if is_answered else b""
            except ConnectionError:
                return b""

    def drop(self) -> None:
        """Drops the request: it never arrives, and both sides see a reset."""
        with self._lock:
            ends, self._server, self._client = (self._server, self._client), None, None
        for end in ends:
            if end is not None:
                _reset(end)

    def _takes(self, request: bytes, client: socket.socket, server: socket.socket) -> bool:
        with self._lock:
            if self._caught.is_set() or not self._is_it(request):
                return False
            self._request, self._server = request, server
            if self._resets:
                _reset(client)
            else:
                self._client = client
            self._caught.set()
            return True


class Proxy:
    """Listens on a port of its own, and passes bytes on to another.

    Example:
        >>> with Proxy(5432) as proxy:
        ...     client = socket.create_connection(("127.0.0.1", proxy.port))
        ...     with proxy.cut():
        ...         ...  # what is connected is reset, what connects is refused
    """

    def __init__(
        self,
        target_port: int,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        is_http: bool = False,
    ) -> None:
        """`is_http`: requests are passed on when all of them is there, and not as they come."""
        self._target, self._is_http = (host, target_port), is_http
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._is_cut = self._is_closed = False
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._cut_after: int | None = None
        self._is_asked: Callable[[bytes], bool] | None = None
        self._asked_by: socket.socket | None = None
        self._holds: list[HeldRequest] = []
        self.connections = 0
        """Number of clients that have come through."""
        self.refused = 0
        """Number of clients that have come while it was cut."""
        self._listening = socket.create_server((host, port))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self._goes_on.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.reset()
        for held in self._holds:
            held.drop()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Lets nothing through, in either direction, until the end of the block."""
        self.break_off()
        try:
            yield
        finally:
            self.restore()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Holds back what is sent until the end of the block, like a server that is stopped."""
        self._goes_on.clear()
        try:
            yield
        finally:
            self._goes_on.set()

    def break_off(self) -> None:
        """Resets what is connected; refuses what connects from now on."""
        self._is_cut = True
        self.reset()

    def restore(self) -> None:
        """Lets new connections through again."""
        self._cut_after, self._is_asked, self._asked_by, self._is_cut = None, None, None, False

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def cut_after(self, count: int) -> None:
        """Breaks off once so many more bytes have come from clients: in the middle of a call."""
        self._cut_after = count

    def cut_answer_to(self, is_asked: Callable[[bytes], bool]) -> None:
        """Passes on what a client says, and breaks off when the answer comes: the server has done
        it, and nobody is told.

        Args:
            is_asked: told what a client says, whether this is it.
        """
        self._is_asked = is_asked

    def hold_next(self, is_it: Callable[[bytes], bool], *, resets: bool = True) -> HeldRequest:
        """Keeps the next request back that matches: it may arrive after its successors.

        Args:
            is_it: told what a client says, as it comes in one piece, whether this is it.
            resets: its client's connection is reset; otherwise nothing more is heard on it.
        """
        held = HeldRequest(is_it, resets)
        self._holds.append(held)
        return held

    def reset(self) -> None:
        """Resets what is connected; who connects again gets through."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                _reset(end)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._is_cut:
                self.refused += 1
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            self.connections += 1
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        end_it, held, said = _reset, False, b""
        try:
            with selectors.DefaultSelector() as ready:
                for end in other:
                    ready.register(end, selectors.EVENT_READ)
                while True:
                    for key, _ in ready.select():
                        end = key.fileobj
                        assert isinstance(end, socket.socket)
                        data = end.recv(_CHUNK)
                        if not data:
                            end_it = _close  # who has hung up has said all
                            return
                        if self._is_used_up(end is client, len(data)):
                            return
                        if self._is_answer(client, end is client, data):
                            return
                        if end is client and self._is_http:
                            said += data
                            if _EXPECTS in said:
                                said = said.replace(_EXPECTS, b"\r\n")
                                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                            if not _is_whole(said):
                                continue
                            data, said = said, b""
                        if end is client and any(
                            h._takes(data, client, server) for h in self._holds
                        ):
                            held = True
                            return
                        self._goes_on.wait()
                        other[end].sendall(data)
        except (OSError, ValueError):
            return  # reset: by us, or by one of the ends
        finally:
            with self._lock:
                self._pairs.discard((client, server))
            if not held:
                end_it(client)
                end_it(server)

    def _is_used_up(self, is_from_client: bool, count: int) -> bool:
        if not is_from_client or self._cut_after is None:
            return False
        self._cut_after -= count
        if self._cut_after <= 0:
            self.break_off()
            return True
        return False

    def _is_answer(self, client: socket.socket, is_from_client: bool, data: bytes) -> bool:
        if is_from_client and self._is_asked is not None and self._is_asked(data):
            self._asked_by = client
        elif not is_from_client and self._asked_by is client:
            self.break_off()
            return True
        return False


def _is_whole(said: bytes) -> bool:
    """Is it a request of HTTP with its body?"""
    head, end, body = said.partition(b"\r\n\r\n")
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return body.endswith(b"0\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def _close(end: socket.socket) -> None:
    """Closes a connection without losing bytes that were sent."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_WR)
    end.close()


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Closed without lingering: the peer sees a reset, as from a network that has gone.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
