"""A pipeline over folders of Parquet files by day, and the process that is killed while it runs
it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, windows
from dagster_jet import aggregates as agg

from .. import child

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "examples"))

from day_folders import day_folders


def pipeline(folder: Path) -> Pipeline:
    p = Pipeline(child.JOB)
    rows = p.read_from(day_folders(f"{folder}/days", child.SCHEMA), name="days").with_timestamps(
        "ts", allowed_lag="500 ms"
    )
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{child.WINDOW_MS} ms"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    counts.write_to(sinks.files(f"{folder}/out/counts", format="json"), name="counts_out")
    rows.write_to(sinks.files(f"{folder}/out/rows", format="json"), name="rows_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, pipeline)
