"""Sinks of the same rows that one task writes, and the driver that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks

from . import child

FORMATS = {"lines": "json", "again": "json", "columns": "parquet", "table": "csv"}
"""Format of each output."""


def one_pass_pipeline(folder: Path) -> Pipeline:
    p = Pipeline(child.JOB)
    rows, _, _ = child.windows_over_windows(p, folder)
    for name, format_ in FORMATS.items():
        rows.write_to(sinks.files(f"{folder}/out/{name}", format=format_), name=f"{name}_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, one_pass_pipeline)
