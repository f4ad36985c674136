"""The crash suite's pipeline into Iceberg tables, and the driver that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from dagster_jet.connectors.iceberg import IcebergSink
from tests.unit.connectors.iceberg_rows import options_at

from . import child


def _table(folder: Path, name: str, *by: str, **how: Any) -> IcebergSink:
    place: Any = options_at(folder / "lake")
    return sinks.iceberg("lake", f"crash.{name}", partition_by=by, catalog_options=place, **how)


def iceberg_pipeline(folder: Path) -> Pipeline:
    """Two tables are partitioned, one by a transform; in its files is one row each. The start
    creates them."""
    (folder / "lake").mkdir(exist_ok=True)
    p = Pipeline(child.JOB)
    rows, counts, rollup = child.windows_over_windows(p, folder)
    counts.write_to(_table(folder, "counts", "k"), name="counts_out")
    rollup.write_to(_table(folder, "rollup"), name="rollup_out")
    big = rows.filter(f"v >= {child.BIG}")
    table = _table(folder, "big", "bucket(2, k)", "v", target_file_bytes=1)
    big.write_to(table, name="big_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, iceberg_pipeline)


def copying_pipeline(folder: Path) -> Pipeline:
    """Pipeline from a table into another one of the same catalog."""
    place: Any = options_at(folder / "lake")
    p = Pipeline(child.JOB)
    rows = p.read_from(sources.iceberg("lake", "crash.rows", catalog_options=place), name="rows")
    rows.write_to(_table(folder, "copy"), name="copy_out")
    return p


def main_copying(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, copying_pipeline)


def upsert_pipeline(folder: Path) -> Pipeline:
    """Windows by their key, partitioned by another column; the rows of `big` have none."""
    (folder / "lake").mkdir(exist_ok=True)
    p, keyed = Pipeline(child.JOB), {"mode": "upsert", "key": ("k", "window_start")}
    rows, counts, rollup = child.windows_over_windows(p, folder)
    counts.write_to(_table(folder, "counts", "bucket(2, n)", **keyed), name="counts_out")
    rollup.write_to(_table(folder, "rollup", **keyed), name="rollup_out")
    rows.filter(f"v >= {child.BIG}").write_to(_table(folder, "big"), name="big_out")
    return p


def main_upserting(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, upsert_pipeline)
