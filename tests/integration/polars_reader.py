"""Polars as a reader of lake tables, which nobody here wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars


def delta_rows(
    url: Path | str, storage_options: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Reads the newest version of a table. `deltalake` names its files.

    Args:
        storage_options: as `deltalake` takes them.
    """
    return _rows(polars.scan_delta(str(url), storage_options=dict(storage_options or {})))


def iceberg_rows(
    metadata: Path, storage_options: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Reads the table whose metadata are in a file. `pyiceberg` names its files.

    Args:
        storage_options: as `pyiceberg` takes them.
    """
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # its own is another package, and warns
    return _rows(polars.scan_iceberg(str(metadata), storage_options=dict(storage_options or {})))


def _rows(frame: polars.LazyFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.collect().to_dicts()
    return rows
