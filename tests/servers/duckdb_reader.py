"""DuckDB with its extensions for tables of a lake: a reader that nobody here wrote. It is a version
of its own, because extensions are of one version of DuckDB, so it runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from .packages import NotInstalledError

_VERSION = "1.5.5"
_EXTENSIONS = ("avro", "httpfs", "iceberg", "delta")
_FOLDER = Path(__file__).parents[2] / ".cache" / f"duckdb-{_VERSION}-{'-'.join(_EXTENSIONS)}"
_READ = """
import os, sys, duckdb
folder, extensions, endpoint, query, out = sys.argv[1:]
database = duckdb.connect()
for name in extensions.split():
    path = f"{folder}/duckdb_extension_{name}/extensions/v{duckdb.__version__}"
    database.execute(f"LOAD '{path}/{name}.duckdb_extension'")
if endpoint:
    scheme, _, host = endpoint.partition("://")
    secret = {
        "TYPE": "s3",
        "KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
        "SECRET": os.environ["AWS_SECRET_ACCESS_KEY"],
        "REGION": os.environ["AWS_DEFAULT_REGION"],
        "ENDPOINT": host,
        "URL_STYLE": "path",
        "USE_SSL": str(scheme == "https").lower(),
    }
    said = ", ".join(f"{name} '{value}'" for name, value in secret.items())
    database.execute(f"CREATE SECRET ({said})")
database.execute(f"COPY ({query}) TO '{out}' (FORMAT parquet)")
"""


def install() -> None:
    """Installs it before the tests, or at the first read.

    Raises:
        NotInstalledError: it cannot be fetched.
    """
    if _FOLDER.exists():
        return
    _FOLDER.parent.mkdir(exist_ok=True)
    wanted = [f"{name}=={_VERSION}" for name in ("duckdb", *map(_package, _EXTENSIONS))]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    with TemporaryDirectory(dir=_FOLDER.parent) as folder:
        made = Path(folder, "made")
        done = subprocess.run([*pip, made, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalledError(f"{' '.join(wanted)} cannot be fetched: {done.stderr[-500:]}")
        with suppress(OSError):  # another process was faster
            made.rename(_FOLDER)


def _package(extension: str) -> str:
    return f"duckdb-extension-{extension}"


def iceberg_rows(metadata: Path, endpoint_url: str = "") -> list[dict[str, Any]]:
    """Reads the table whose metadata are in a file.

    Args:
        endpoint_url: of the S3 server that has the other files; "" if they are local.
    """
    return rows_of(f"SELECT * FROM iceberg_scan('{metadata}')", endpoint_url)


def delta_rows(url: Path | str, endpoint_url: str = "") -> list[dict[str, Any]]:
    """Reads the newest version of a table, local or in a bucket of this server."""
    return rows_of(f"SELECT * FROM delta_scan('{url}')", endpoint_url)


def rows_of(query: str, endpoint_url: str = "") -> list[dict[str, Any]]:
    install()
    with TemporaryDirectory() as folder:
        return _read(query, endpoint_url, Path(folder) / "rows.parquet")


def _read(query: str, endpoint_url: str, out: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(_FOLDER)}
    given = (str(_FOLDER), " ".join(_EXTENSIONS), endpoint_url, query, str(out))
    command = [sys.executable, "-c", _READ, *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows
