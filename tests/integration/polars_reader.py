"""Polars as a reader of lake tables, which nobody here wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars


def delta_rows(folder: Path) -> list[dict[str, Any]]:
    """Reads the newest version of a table."""
    return _rows(polars.scan_delta(str(folder)))


def iceberg_rows(metadata: Path) -> list[dict[str, Any]]:
    """Reads the table whose metadata are in a file."""
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # its own is another package, and warns
    return _rows(polars.scan_iceberg(str(metadata)))


def _rows(frame: polars.LazyFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.collect().to_dicts()
    return rows
