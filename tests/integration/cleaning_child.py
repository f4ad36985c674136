"""The crash suite's pipeline, whose sources archive what they have read, and the driver that is
killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks

from . import child


def cleaning_pipeline(folder: Path) -> Pipeline:
    """Pipeline that reads files in subfolders and archives them."""
    p, out = Pipeline(child.JOB), f"{folder}/out"
    rows, counts, rollup = child.windows_over_windows(
        p, folder, recursive=True, after_commit="archive", archive=f"{folder}/done"
    )
    counts.write_to(sinks.files(f"{out}/counts", format="json"), name="counts_out")
    rollup.write_to(sinks.files(f"{out}/rollup", format="parquet"), name="rollup_out")
    big = rows.filter(f"v >= {child.BIG}")
    big.write_to(sinks.files(f"{out}/big", format="csv"), name="big_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, cleaning_pipeline)
