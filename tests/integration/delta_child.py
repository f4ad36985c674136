"""The crash suite's pipeline into Delta Lake tables, and the driver that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks

from . import child, s3_child

KEY = ("k", "window_start")


def delta_pipeline(folder: Path) -> Pipeline:
    """Two tables are partitioned, one by a column of integers; in its files is one row each."""
    p, out = Pipeline(child.JOB), f"{folder}/out"
    rows, counts, rollup = child.windows_over_windows(p, folder)
    counts.write_to(sinks.delta(f"{out}/counts", partition_by="k"), name="counts_out")
    rollup.write_to(sinks.delta(f"{out}/rollup"), name="rollup_out")
    big = rows.filter(f"v >= {child.BIG}")
    table = sinks.delta(f"{out}/big", partition_by=["k", "v"], target_file_bytes=1)
    big.write_to(table, name="big_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, delta_pipeline)


def s3_pipeline(folder: Path) -> Pipeline:
    """Pipeline from local files into one table in a bucket."""
    p = Pipeline(child.JOB)
    _, counts, _ = child.windows_over_windows(p, folder)
    table = sinks.delta(f"{s3_child.url(folder)}/counts", partition_by="k", **s3_child.place())
    counts.write_to(table, name="counts_out")
    return p


def main_into_bucket(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, s3_pipeline)


def upsert_pipeline(folder: Path) -> Pipeline:
    """Windows by their key; the rows of `big` have none."""
    p, out = Pipeline(child.JOB), f"{folder}/out"
    rows, counts, rollup = child.windows_over_windows(p, folder)
    for windows, name in ((counts, "counts"), (rollup, "rollup")):
        table = sinks.delta(f"{out}/{name}", mode="upsert", key=KEY)
        windows.write_to(table, name=f"{name}_out")
    rows.filter(f"v >= {child.BIG}").write_to(sinks.delta(f"{out}/big"), name="big_out")
    return p


def main_upserting(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, upsert_pipeline)
