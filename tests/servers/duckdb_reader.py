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
_FORMATS = ("avro", "iceberg", "delta")
_FOLDER = Path(__file__).parents[2] / ".cache" / f"duckdb-{_VERSION}"
_READ = """
import sys, duckdb
folder, query, out = sys.argv[1:]
database = duckdb.connect()
for name in ("avro", "iceberg", "delta"):
    path = f"{folder}/duckdb_extension_{name}/extensions/v{duckdb.__version__}"
    database.execute(f"LOAD '{path}/{name}.duckdb_extension'")
database.execute(f"COPY ({query}) TO '{out}' (FORMAT parquet)")
"""


def install() -> None:
    """Before the tests, or at the first read.

    Raises:
        NotInstalledError: it cannot be fetched.
    """
    if _FOLDER.exists():
        return
    _FOLDER.parent.mkdir(exist_ok=True)
    wanted = [f"{name}=={_VERSION}" for name in ("duckdb", *map(_package, _FORMATS))]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    with TemporaryDirectory(dir=_FOLDER.parent) as folder:
        made = Path(folder, "made")
        done = subprocess.run([*pip, made, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalledError(f"{' '.join(wanted)} cannot be fetched: {done.stderr[-500:]}")
        with suppress(OSError):  # another process was faster
            made.rename(_FOLDER)


def _package(format: str) -> str:
    return f"duckdb-extension-{format}"


def iceberg_rows(metadata: Path) -> list[dict[str, Any]]:
    """Reads the table whose metadata are in a file."""
    return rows_of(f"SELECT * FROM iceberg_scan('{metadata}')")


def delta_rows(folder: Path) -> list[dict[str, Any]]:
    """Reads the newest version of a table."""
    return rows_of(f"SELECT * FROM delta_scan('{folder}')")


def rows_of(query: str) -> list[dict[str, Any]]:
    install()
    with TemporaryDirectory() as folder:
        return _read(query, Path(folder) / "rows.parquet")


def _read(query: str, out: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(_FOLDER)}
    command = [sys.executable, "-c", _READ, str(_FOLDER), query, str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return rows
