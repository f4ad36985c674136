"""The proxy that connector tests cut."""

import socket
import threading

import pytest

from tests.servers.proxy import Proxy


@pytest.fixture
def echo():
    """The port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=back, args=(client,), daemon=True).start()

        def back(client):
            with client:
                while data := client.recv(1000):
                    client.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def connected(proxy):
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    client.sendall(b"hello")
    assert client.recv(5) == b"hello"
    return client


def is_gone(client):
    try:
        client.sendall(b"x")
        return client.recv(1) == b""
    except OSError:
        return True


def test_a_cut_ends_connections_and_refuses_new_ones_until_it_is_over(echo):
    with Proxy(echo) as proxy:
        client = connected(proxy)
        with proxy.cut():
            assert is_gone(client)
            with pytest.raises((OSError, AssertionError)):
                connected(proxy)
        connected(proxy).close()
        assert proxy.connections == 2


def test_it_is_cut_in_the_middle_of_what_a_client_sends(echo):
    with Proxy(echo) as proxy:
        client = connected(proxy)
        proxy.cut_after(3)
        client.sendall(b"four")
        assert is_gone(client)
        proxy.restore()
        connected(proxy).close()


def test_a_request_that_is_held_arrives_when_it_is_released(echo):
    with Proxy(echo) as proxy:
        client, other = connected(proxy), connected(proxy)
        held = proxy.hold_next(lambda request: request == b"commit")
        client.sendall(b"commit")
        held.wait()
        assert is_gone(client)
        other.sendall(b"commit")  # only the first one is held
        assert other.recv(6) == b"commit"
        assert held.release() == b"commit"
        with pytest.raises(LookupError):
            held.release()
        again = proxy.hold_next(lambda request: request == b"commit")
        other.sendall(b"commit")
        again.wait()
        again.drop()
        connected(proxy).close()
