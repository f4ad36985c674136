"""A pipeline that reads the change data feed of a table, and the process that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources

from . import child

ROW = ("id", "v", "_change_type", "_commit_version")


def pipeline(folder: Path) -> Pipeline:
    """The changes as they are, and a mirror of the table, as docs/connectors/delta.md has it."""
    p = Pipeline(child.JOB)
    changes = p.read_from(sources.delta(f"{folder}/table", changes=True), name="changes")
    changes.select(*ROW).write_to(sinks.files(f"{folder}/out/changes", format="json"), name="all")
    removed = "_change_type in ('delete', 'update_preimage')"
    mirrored = changes.select(
        f"if({removed}, 'delete', 'insert') AS op",
        "_commit_version AS _lsn",
        f"if({removed}, 0L, 1L) AS _row",
        "named_struct('id', id) AS _old",
        "cast(array() AS array<string>) AS _unchanged",
        "id",
        "v",
    )
    mirror = sinks.delta(f"{folder}/out/mirror", mode="mirror", key="id")
    mirrored.write_to(mirror, name="mirror")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, pipeline)
