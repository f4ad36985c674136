"""Windows that are corrected, in files and in tables, and the driver that is killed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.contract import Sink

from . import child

SCHEMA = "k string, ts long, v long"
KINDS: dict[str, windows.TumblingWindow | windows.SlidingWindow] = {
    "tumbling": windows.tumbling("500 ms"),
    "sliding": windows.sliding("1500 ms", "500 ms"),
}


def corrected(folder: Path, lateness: str = "700 ms") -> Pipeline:
    """No lag is allowed: a row behind those of earlier epochs corrects windows, or is late."""
    p = Pipeline("corrected")
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps("ts", idle_timeout="0 ms")
    for name, window in KINDS.items():
        keyed = rows.group_by("k").window(window, allowed_lateness=lateness)
        stage = keyed.aggregate(n=agg.count(), total=agg.sum("v"), name=name)
        late = sinks.files(f"{folder}/out/{name}_late", format="json")
        stage.late_to(late, name=f"{name}_late")
        versions = sinks.files(f"{folder}/out/{name}", format="json")
        stage.write_to(versions, name=f"{name}_out")
        key = ["k", "window_end"]
        table: Sink = sinks.delta(f"{folder}/out/{name}_table", mode="upsert", key=key)
        if name == "sliding":
            place = f"sqlite:///{folder}/{name}.db"
            table = sinks.sql(place, table="results", mode="upsert", key=key)
        shown = stage.select("k", "window_end", "n", "total", "correction")
        shown.write_to(table, name=f"{name}_table")
    # The same late rows beside them: what is in time is counted by fours.
    fours = rows.group_by("k").window(windows.count(4))
    counted = fours.aggregate(total=agg.sum("v"), first=agg.first("v"), name="fours")
    counted.late_to(sinks.files(f"{folder}/out/fours_late", format="json"), name="fours_late")
    counted.write_to(sinks.files(f"{folder}/out/fours", format="json"), name="fours_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, corrected)
