"""Windows and totals of rows, some of them of the year 2099, and the driver that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Stage, sinks, sources, windows
from dagster_jet import aggregates as agg

from . import child

FAR_MS = 4_070_908_800_000
WINDOW_MS = 1_000


def counted(rows: Stage, folder: Path) -> None:
    """Pipeline to files: windows, rows one after the other, and late rows."""
    keyed = rows.group_by("k")
    counts = keyed.window(windows.tumbling(f"{WINDOW_MS} ms")).aggregate(
        n=agg.count(), total=agg.sum("v"), name="counts"
    )
    counts.late_to(sinks.files(f"{folder}/out/late", format="json"), name="late")
    counts.write_to(sinks.files(f"{folder}/out/counts", format="json"), name="counts_out")
    running = keyed.running(total="sum(v)", name="running").select("k", "ts", "total")
    running.write_to(sinks.files(f"{folder}/out/running", format="json"), name="running_out")


def ahead(folder: Path, max_ahead: str | None = "1 hour") -> Pipeline:
    p = Pipeline("ahead")
    source = sources.files(f"{folder}/in/left", format="json", schema=child.SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps(
        "ts", allowed_lag="500 ms", idle_timeout="0 ms", max_ahead=max_ahead
    )
    counted(rows, folder)
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, ahead)
