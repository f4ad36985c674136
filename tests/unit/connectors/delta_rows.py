"""Rows of a Delta Lake table, read in two ways that share no line: by the package `deltalake`, and
by what the format says of the log's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

Row = dict[str, Any]


def by_library(url: str, options: Mapping[str, str] | None = None) -> list[Row]:
    table = DeltaTable(url, storage_options=dict(options or {}))
    rows: list[Row] = table.to_pyarrow_table().to_pylist()
    return rows


def by_log(folder: Path) -> list[Row]:
    """Reads a local table from its newest checkpoint on: the files that were added and not removed,
    and the values of their partitions."""
    log = folder / "_delta_log"
    known, first, types = {}, 0, {}
    if (log / "_last_checkpoint").exists():
        version = json.loads((log / "_last_checkpoint").read_text())["version"]
        first = version + 1
        for action in pq.read_table(log / f"{version:020d}.checkpoint.parquet").to_pylist():
            if action.get("metaData"):
                types = _types(action["metaData"])
            if action.get("add"):
                known[action["add"]["path"]] = dict(action["add"]["partitionValues"])
    while (path := log / f"{first:020d}.json").exists():
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "metaData" in action:
                types = _types(action["metaData"])
            if "add" in action:
                known[action["add"]["path"]] = action["add"]["partitionValues"]
            if "remove" in action:
                known.pop(action["remove"]["path"], None)
        first += 1
    rows: list[Row] = []
    for name, values in known.items():
        typed = {column: _parsed(types[column], value) for column, value in values.items()}
        rows += [{**row, **typed} for row in _in_file(folder / unquote(name))]
    return rows


@cache  # a data file never changes
def _in_file(path: Path) -> list[Row]:
    rows: list[Row] = pq.ParquetFile(path).read().to_pylist()
    return rows


def _types(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {f["name"]: f["type"] for f in json.loads(metadata["schemaString"])["fields"]}


def _parsed(type: Any, value: str | None) -> Any:
    arrow = {"string": pa.string(), "boolean": pa.bool_(), "date": pa.date32()}
    return pa.scalar(value, pa.string()).cast(arrow.get(type, pa.int64())).as_py()
