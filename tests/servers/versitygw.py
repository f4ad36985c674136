"""A real S3 server: versitygw, which keeps a bucket in a folder and survives SIGKILL. Go builds it,
once, for the soak only."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.servers.members import free_port

from .packages import go_program
from .shared import ToStart

VERSION = "v1.8.0"
KEY = "testing"
"""Access key id and secret, as of moto's server."""


def prepared(folder: Path, bucket: str, port: int | None = None) -> ToStart:
    """Returns how a server with one bucket is started; one that was there keeps its objects.

    Args:
        port: by default a free one.

    Raises:
        NotInstalledError: Go is not there, or cannot build it.
    """
    program = go_program("github.com/versity/versitygw/cmd/versitygw", VERSION)
    port = port or free_port()
    (folder / "buckets" / bucket).mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{port}"
    command = [str(program), "--port", address, "--health", "/health", "--quiet"]
    command += ["posix", str(folder / "buckets")]

    def is_ready() -> bool:
        with urllib.request.urlopen(f"http://{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)

    keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": KEY}
    return ToStart(command, is_ready, {"endpoint_url": f"http://{address}", "port": port}, keys)
