"""A job over one file that is too large for an epoch, and the driver that is killed on the way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg

from . import child

SCHEMA = "id long, ts long, name string, price decimal(9,2), at timestamp, tags array<string>"
CSV_SCHEMA = "id long, ts long, name string, price decimal(9,2), at timestamp"
WINDOW_MS = 10_000
OPTIONS = {"csv": {"header": "true"}}
CONFIG = {**child.CONFIG, "max_items_per_epoch": 30_000}


def job(format: str, folder: Path) -> Pipeline:
    """Rows as they are into one folder, counts by window into another."""
    p = Pipeline(f"large_{format}")
    source = sources.files(
        f"{folder}/in",
        format=format,
        schema=CSV_SCHEMA if format == "csv" else SCHEMA,
        options=OPTIONS.get(format),
    )
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag="1 second")
    rows.write_to(sinks.files(f"{folder}/out/rows", format="parquet"), name="rows_out")
    rows.window(windows.tumbling(f"{WINDOW_MS} ms")).aggregate(
        n=agg.count(), total=agg.sum("price"), name="counts"
    ).write_to(sinks.files(f"{folder}/out/counts", format="parquet"), name="counts_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    order["config"] = {**CONFIG, **order.get("config", {})}
    return child.main(folder, order, partial(job, str(order.pop("format"))))
