"""A job into several tables of one REST catalog, and the driver that is killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from dagster_jet.core.secret import Secret

from . import child

TABLES: dict[str, Any] = {
    "plain": {},
    "parted": {"partition_by": "bucket(2, id)"},
    "keyed": {"mode": "upsert", "key": "id"},
}
"""Each gets every row."""


def joint_pipeline(folder: Path) -> Pipeline:
    """The catalog's options, and the namespace, are in a file of the folder. LAKE_TOKEN is set."""
    catalog = json.loads((folder / "catalog.json").read_text())
    options = {**catalog["options"], "token": Secret(env="LAKE_TOKEN")}
    p = Pipeline(child.JOB)
    schema = "id long, text string"
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema=schema), name="rows")
    for name, how in TABLES.items():
        table = f"{catalog['space']}.{name}"
        rows.write_to(
            sinks.iceberg("lake", table, catalog_options=options, **how), name=f"{name}_out"
        )
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, joint_pipeline)
