"""A pipeline that is enriched with tables of a lake, and the process that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources, tables
from tests.unit.connectors.iceberg_rows import NAME, options_at

from . import child


def pipeline(folder: Path) -> Pipeline:
    """One sink is at-least-once: it shows what each repetition of an epoch has found."""
    p, place = Pipeline(child.JOB), options_at(folder)
    rows = p.read_from(
        sources.files(f"{folder}/in/left", format="json", schema=child.SCHEMA), name="left"
    )
    found = (
        rows.enrich(tables.delta(f"{folder}/table"), on="k", name="delta")
        .enrich(tables.iceberg("lake", NAME, catalog_options=place), on="k", name="iceberg")
        .select("k", "ts", "v", "of_delta", "of_iceberg")
    )
    found.write_to(sinks.files(f"{folder}/out/once", format="json"), name="once")
    often = sinks.files(f"{folder}/out/often", format="json", guarantee="at-least-once")
    found.write_to(often, name="often")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, pipeline)
