"""Rows of an Iceberg table in a SQLite catalog, read in two ways that share no line: by the package
`pyiceberg`, and by what the format says of its metadata, manifest lists and manifests."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fastavro
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

Row = dict[str, Any]
NAME = "space.rows"


def options_at(folder: Path) -> dict[str, str]:
    """A catalog in the folder, with its tables."""
    uri = f"sqlite:///{quote(str(folder))}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"}


def by_library(
    folder: Path,
    name: str = NAME,
    options: Mapping[str, str] | None = None,
    branch: str = "main",
) -> list[Row]:
    with closing(load_catalog("lake", **{**options_at(folder), **(options or {})})) as catalog:
        found = catalog.load_table(name)
        if branch not in found.metadata.refs:
            return []
        rows: list[Row] = found.scan().use_ref(branch).to_arrow().to_pylist()
        return rows


def by_manifests(folder: Path, name: str = NAME, branch: str = "main") -> list[Row]:
    """Reads a local table: the catalog's newest metadata, and the files that are not deleted."""
    metadata = metadata_of(folder, name)
    head = metadata["refs"].get(branch, {}).get("snapshot-id")
    rows: list[Row] = []
    for snapshot in metadata["snapshots"]:
        if snapshot["snapshot-id"] == head:
            for manifest in _records(snapshot["manifest-list"]):
                assert manifest["content"] == 0, "these tables have no delete files"
                for entry in _records(manifest["manifest_path"]):
                    if entry["status"] != 2:
                        rows += _in_file(entry["data_file"]["file_path"])
    return rows


def metadata_of(folder: Path, name: str = NAME) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(metadata_at(folder, name).read_text())
    return found


def metadata_at(folder: Path, name: str = NAME) -> Path:
    """Returns the file of the catalog's newest metadata."""
    space, _, table = name.rpartition(".")
    with closing(sqlite3.connect(folder / "catalog.db")) as database:
        [(at,)] = database.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? "
            "AND table_name = ?",
            (space, table),
        )
    return _path(at)


def _records(location: str) -> list[dict[str, Any]]:
    with _path(location).open("rb") as file:
        return [dict(record) for record in fastavro.reader(file)]


@cache  # a data file never changes
def _in_file(location: str) -> list[Row]:
    rows: list[Row] = pq.ParquetFile(_path(location)).read().to_pylist()
    return rows


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))
