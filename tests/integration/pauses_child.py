"""Stages that pauses in event time divide, and the driver that is killed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg

from . import child

SCHEMA = "k string, ts long, v long"
GAP_MS, MOST_MS = 120, 300


def pauses(folder: Path) -> Pipeline:
    """No lag is allowed: rows behind those of earlier epochs are late."""
    p = Pipeline("pauses")
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps("ts", idle_timeout="0 ms")
    keyed = rows.group_by("k")
    sessions = keyed.window(windows.session(f"{GAP_MS} ms", max_duration=f"{MOST_MS} ms"))
    stage = sessions.aggregate(
        n=agg.count(), total=agg.sum("v"), values=agg.collect_list("v"), name="sessions"
    )
    stage.late_to(sinks.files(f"{folder}/out/late", format="json"), name="late")
    shown = stage.select("k", "window_start", "window_end", "n", "total", "to_json(values) vs")
    shown.write_to(sinks.files(f"{folder}/out/sessions", format="json"), name="sessions_out")
    totals = keyed.rolling_aggregate(
        n=agg.count(), total=agg.sum("v"), values=agg.collect_list("v"),
        ttl=f"{GAP_MS} ms", name="totals",
    )  # fmt: skip
    late = sinks.files(f"{folder}/out/late_totals", format="json")
    totals.late_to(late, name="late_totals")
    newest = totals.select("k", "unix_millis(ts) AS ts", "n", "total", "to_json(values) AS vs")
    table = sinks.map_entries("totals", key="k", value=("ts", "n", "total", "vs"))
    newest.write_to(table, name="totals_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, pauses)
