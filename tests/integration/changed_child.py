"""A pipeline whose sinks change between two starts, and the driver that is killed in between."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg

from . import child

JOB = "changing-sinks"
BEFORE = {"kept": "kept", "dropped": "dropped", "renamed": "renamed", "moved": "moved"}
"""Folder of each sink, by the sink's name."""


def rows_into(folder: Path, places: Mapping[str, str]) -> Pipeline:
    """The rows as they are into some sinks, and their windows into one that never changes."""
    p = Pipeline(JOB)
    source = sources.files(f"{folder}/in/left", format="json", schema=child.SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag="500 ms")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling("1 second"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    counts.write_to(sinks.files(f"{folder}/out/counts", format="json"), name="counts_out")
    for name, place in places.items():
        rows.write_to(sinks.files(f"{folder}/out/{place}", format="json"), name=name)
    return p


def rows_into_both(folder: Path, files: str, table: str) -> Pipeline:
    """The rows into a folder and a table, by sinks of these names."""
    p = Pipeline(JOB)
    source = sources.files(f"{folder}/in/left", format="json", schema=child.SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag="500 ms")
    rows.write_to(sinks.files(f"{folder}/out/rows", format="json"), name=files)
    rows.write_to(sinks.sql(f"sqlite:///{folder}/rows.db", table="rows"), name=table)
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    if "sinks" in order:
        return child.main(folder, order, lambda folder: rows_into_both(folder, *order["sinks"]))
    return child.main(folder, order, lambda folder: rows_into(folder, BEFORE))
