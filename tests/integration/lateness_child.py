"""Windows that are corrected, in files and in tables, and the driver that is killed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Stage, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.contract import Sink
from tests.unit.connectors.iceberg_rows import options_at

from . import child

SCHEMA = "k string, ts long, v long"
ICEBERG = "lateness.tumbling"
KINDS: dict[str, windows.TumblingWindow | windows.SlidingWindow] = {
    "tumbling": windows.tumbling("500 ms"),
    "sliding": windows.sliding("1500 ms", "500 ms"),
}


def read(folder: Path, **place: Any) -> tuple[Pipeline, Stage]:
    """No lag is allowed: a row behind those of earlier epochs corrects windows, or is late."""
    p = Pipeline("corrected")
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA, **place)
    return p, p.read_from(source, name="rows").with_timestamps("ts", idle_timeout="0 ms")


def versions(rows: Stage, name: str, folder: Path, lateness: str, **place: Any) -> Stage:
    """All versions of the windows, and the late rows, in files."""
    keyed = rows.group_by("k").window(KINDS[name], allowed_lateness=lateness)
    stage = keyed.aggregate(n=agg.count(), total=agg.sum("v"), name=name)
    late = sinks.files(f"{folder}/out/{name}_late", format="json", **place)
    stage.late_to(late, name=f"{name}_late")
    files = sinks.files(f"{folder}/out/{name}", format="json", **place)
    stage.write_to(files, name=f"{name}_out")
    return stage


def tables(folder: Path, name: str) -> dict[str, Sink]:
    """Places that keep the last version of each window."""
    key, lake = ["k", "window_end"], folder / "lake"
    if name == "sliding":
        database = f"sqlite:///{folder}/{name}.db"
        return {
            "table": sinks.sql(database, table="results", mode="upsert", key=key),
            "map": sinks.map_entries(name, key=("k", "end"), value=("n", "total", "correction")),
        }
    lake.mkdir(exist_ok=True)
    catalog: Any = options_at(lake)
    return {
        "table": sinks.delta(f"{folder}/out/{name}_table", mode="upsert", key=key),
        "iceberg": sinks.iceberg("lake", ICEBERG, mode="upsert", key=key, catalog_options=catalog),
    }


def corrected(folder: Path, lateness: str = "700 ms") -> Pipeline:
    p, rows = read(folder)
    for name in KINDS:
        stage = versions(rows, name, folder, lateness)
        for kind, table in tables(folder, name).items():
            end = "unix_millis(window_end) AS end" if kind == "map" else "window_end"
            shown = stage.select("k", end, "n", "total", "correction")
            shown.write_to(table, name=f"{name}_{kind}")
    # The same late rows beside them: what is in time is counted by fours.
    fours = rows.group_by("k").window(windows.count(4))
    counted = fours.aggregate(total=agg.sum("v"), first=agg.first("v"), name="fours")
    counted.late_to(sinks.files(f"{folder}/out/fours_late", format="json"), name="fours_late")
    counted.write_to(sinks.files(f"{folder}/out/fours", format="json"), name="fours_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, corrected)
