"""Object stores of Google and Azure for the soak: fake-gcs-server, which Go builds, and Azurite,
which npm installs; and gcsfs and adlfs, which are not in the lock."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from tests.servers.members import free_port

from .packages import go_program, npm_package, python_packages
from .shared import ToStart

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's, which everybody knows."""


def drivers() -> Path:
    """A folder for `sys.path` and `PYTHONPATH`.

    Raises:
        NotInstalledError: pip cannot install them.
    """
    return python_packages("object-drivers", "gcsfs==2026.10.1", "adlfs==2026.8.0")


def fake_gcs() -> ToStart:
    """Google's API without credentials, at `endpoint_url`.

    Raises:
        NotInstalledError: Go is not there, or cannot build it.
    """
    program, port = go_program("github.com/fsouza/fake-gcs-server", "v1.56.1"), free_port()
    address = f"127.0.0.1:{port}"
    command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory"]  # the other one walks through all objects for each listing
    command += ["-public-host", address, "-external-url", f"http://{address}", "-log-level", "warn"]
    url = f"http://{address}"
    return ToStart(command, lambda: _answers(f"{url}/storage/v1/b"), {"endpoint_url": url})


def azurite(folder: Path) -> ToStart:
    """Azure's API, reached by `connection_string`.

    Raises:
        NotInstalledError: npm is not there, or cannot install it.
    """
    program, port = npm_package("azurite", "3.35.0") / "dist/src/blob/main.js", free_port()
    command = ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += [
        "--location",
        str(folder),
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    reached_by = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url};"
    return ToStart(command, lambda: _answers(url), {"connection_string": reached_by})


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
