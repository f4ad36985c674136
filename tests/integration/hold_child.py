"""A job into two tables of a lake that hold rows back, and into files that do not; and the driver
that is killed."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from tests.unit.connectors.iceberg_rows import options_at

from . import child

MIN_BYTES = 60_000
WAITS: dict[str, Any] = {"min_file_bytes": MIN_BYTES, "max_delay": "1 hour"}
SOON: dict[str, Any] = {"min_file_bytes": MIN_BYTES, "max_delay": "5 seconds"}
NOT: dict[str, Any] = {}


def pipeline(
    folder: Path,
    words: dict[str, Any],
    *,
    tables: Collection[str] = ("delta", "iceberg"),
    delta: str = "delta",
    job: str = child.JOB,
    out: str = "out",
    has_more: bool = False,
) -> Pipeline:
    """
    Args:
        words: options of the tables.
        tables: formats that have one.
        delta: name of the sink of Delta Lake.
        out: folder of the outputs, and beginning of the table's name in the catalog.
        has_more: whether the tables have the column `more`, which is `id` + 1.
    """
    (folder / "lake").mkdir(exist_ok=True)
    p, place = Pipeline(job), options_at(folder / "lake")
    schema = "id long, text string"
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema=schema), name="rows")
    wide = rows.select("id", "text", "id + 1 AS more") if has_more else rows
    if "delta" in tables:
        wide.write_to(sinks.delta(f"{folder}/{out}/held", **words), name=delta)
    if "iceberg" in tables:
        name = "crash.held" if out == "out" else f"crash.held_{out}"
        table: Any = sinks.iceberg("lake", name, catalog_options=place, **words)
        wide.write_to(table, name="iceberg")
    rows.write_to(sinks.files(f"{folder}/{out}/plain", format="parquet"), name="plain")
    return p


def waiting(folder: Path) -> Pipeline:
    return pipeline(folder, WAITS)


def waiting_shortly(folder: Path) -> Pipeline:
    return pipeline(folder, SOON)


def not_waiting(folder: Path) -> Pipeline:
    return pipeline(folder, NOT)


def without_tables(folder: Path) -> Pipeline:
    return pipeline(folder, NOT, tables=())


def main(folder: Path, order: dict[str, Any]) -> int:
    given = {"words": WAITS, **order.get("pipeline", {})}
    return child.main(folder, order, partial(pipeline, **given))
