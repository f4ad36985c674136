"""A job into two tables of a lake that hold rows back, and into files that do not; and the driver
that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from tests.unit.connectors.iceberg_rows import options_at

from . import child

MIN_BYTES = 60_000
WAITS: dict[str, Any] = {"min_file_bytes": MIN_BYTES, "max_delay": "1 hour"}
SOON: dict[str, Any] = {"min_file_bytes": MIN_BYTES, "max_delay": "5 seconds"}
NOT: dict[str, Any] = {}


def pipeline(folder: Path, words: dict[str, Any], *, tables: bool = True) -> Pipeline:
    (folder / "lake").mkdir(exist_ok=True)
    p, place = Pipeline(child.JOB), options_at(folder / "lake")
    schema = "id long, text string"
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema=schema), name="rows")
    if tables:
        rows.write_to(sinks.delta(f"{folder}/out/held", **words), name="delta")
        table: Any = sinks.iceberg("lake", "crash.held", catalog_options=place, **words)
        rows.write_to(table, name="iceberg")
    rows.write_to(sinks.files(f"{folder}/out/plain", format="parquet"), name="plain")
    return p


def waiting(folder: Path) -> Pipeline:
    return pipeline(folder, WAITS)


def waiting_shortly(folder: Path) -> Pipeline:
    return pipeline(folder, SOON)


def not_waiting(folder: Path) -> Pipeline:
    return pipeline(folder, NOT)


def without_tables(folder: Path) -> Pipeline:
    return pipeline(folder, NOT, tables=False)


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, waiting)
