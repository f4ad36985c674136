"""The changes of a table into files, and the driver that is killed with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources
from tests.integration import child

JOB, URL = "changes", "JET_TEST_CHANGES_URL"


def changes_pipeline(folder: Path) -> Pipeline:
    """`changes.json` in the folder names database and slot."""
    place = json.loads((folder / "changes.json").read_text())
    os.environ[URL] = place["url"]
    p = Pipeline(JOB)
    p.read_from(
        sources.postgres_changes(Secret(URL), slot=place["slot"], publication="p"), name="changes"
    ).write_to(sinks.files(f"{folder}/out", format="parquet"), name="out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, changes_pipeline)
