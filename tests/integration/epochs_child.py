"""A job into two tables of Delta Lake and one of Iceberg, with an epochs table, and the driver that
is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from tests.unit.connectors.iceberg_rows import options_at

from . import child


def pipeline(folder: Path) -> Pipeline:
    """Each table's rows follow from those of the first one. One sink has no versions."""
    (folder / "lake").mkdir(exist_ok=True)
    p, place, out = Pipeline(child.JOB), options_at(folder / "lake"), f"{folder}/out"
    schema = child.SCHEMA
    rows = p.read_from(
        sources.files(f"{folder}/in/left", format="json", schema=schema), name="left"
    )
    rows.write_to(sinks.delta(f"{out}/all", partition_by="k"), name="all_out")
    big = rows.filter(f"v >= {child.BIG}")
    big.write_to(sinks.delta(f"{out}/big", mode="upsert", key=["k", "ts", "v"]), name="big_out")
    doubled = rows.select("k", "ts", "2 * v AS v")
    table = sinks.iceberg("lake", "crash.doubled", catalog_options=place)
    doubled.write_to(table, name="doubled_out")
    rows.write_to(sinks.files(f"{out}/files", format="json"), name="files_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, {"jet": {"epochs_table": f"{folder}/out/epochs"}, **order}, pipeline)
