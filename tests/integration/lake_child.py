"""A job into tables of Delta Lake and Iceberg that get every row, and the driver that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from tests.unit.connectors.iceberg_rows import options_at

from . import child

UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id"}


def lake_pipeline(folder: Path) -> Pipeline:
    """One table of each format is appended to, one is merged into."""
    (folder / "lake").mkdir(exist_ok=True)
    p, place = Pipeline(child.JOB), options_at(folder / "lake")
    schema = "id long, text string"
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema=schema), name="rows")
    for name, how in (("appended", {}), ("merged", UPSERT)):
        rows.write_to(sinks.delta(f"{folder}/out/{name}", **how), name=f"delta_{name}")
        table = sinks.iceberg("lake", f"crash.{name}", catalog_options=place, **how)
        rows.write_to(table, name=f"iceberg_{name}")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, lake_pipeline)
