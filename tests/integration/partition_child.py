"""The crash suite's pipeline into partitioned files, and the driver that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks

from . import child


def partition_pipeline(folder: Path) -> Pipeline:
    """Many files per task: of partitions, and of a size that any row reaches."""
    p, out = Pipeline(child.JOB), f"{folder}/out"
    rows, counts, rollup = child.windows_over_windows(p, folder)
    by_key = sinks.files(f"{out}/counts", format="json", partition_by="k", compression="gzip")
    counts.write_to(by_key, name="counts_out")
    small = sinks.files(f"{out}/rollup", format="parquet", max_file_bytes=1, compression="zstd")
    rollup.write_to(small, name="rollup_out")
    big = rows.filter(f"v >= {child.BIG}").select("*", "array(v) AS nested")
    by_two = sinks.files(f"{out}/big", format="json", partition_by=["k", "v"])
    big.write_to(by_two, name="big_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, partition_pipeline)
