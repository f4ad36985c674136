"""The pipelines of the map tests, and the driver that is killed while it runs one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg

from . import child

WINDOW_MS = 1000
SCHEMA = "k string, ts long, v long"


def totals(folder: Path) -> Pipeline:
    """files -> windows -> two maps: every window under (k, end), and the newest total under k."""
    p = Pipeline("totals")
    rows = p.read_from(
        sources.files(f"{folder}/in/left", format="json", schema=SCHEMA), name="rows"
    ).with_timestamps("ts", allowed_lag="500 ms", idle_timeout="0 ms")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{WINDOW_MS} ms"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    counts.select("k", "unix_millis(window_end) AS end", "n", "total").write_to(
        sinks.map_entries("totals", key=("k", "end")), name="totals_out"
    )
    counts.write_to(
        sinks.map_entries("newest", key="k", value="total", order_by="window_end"),
        name="newest_out",
    )
    return p


def changes(folder: Path) -> Pipeline:
    """A map's journal -> files."""
    p = Pipeline("changes")
    p.read_from(
        sources.map_journal("prices", schema="price long, by string"), name="changes"
    ).with_timestamps("timestamp", idle_timeout="0 ms").select(
        "kind", "key", "value.price", "value.by", "partition", "sequence"
    ).write_to(sinks.files(f"{folder}/out/changes", format="json"), name="changes_out")
    return p


def entries(folder: Path) -> Pipeline:
    """A map's entries -> files."""
    p = Pipeline("entries")
    p.read_from(
        sources.map_entries("prices", schema="price long, by string"), name="entries"
    ).select("key", "value.price", "value.by").write_to(
        sinks.files(f"{folder}/out/entries", format="parquet"), name="entries_out"
    )
    return p


def windowed_changes(folder: Path) -> Pipeline:
    """A map's journal -> windows, by an event time that is as exact as the order in a partition."""
    p = Pipeline("windowed_changes")
    read = p.read_from(
        sources.map_journal("readings", schema="ts long, v long"), name="readings"
    ).filter("kind = 'put'")
    rows = read.select("key AS k", "value.ts AS ts", "value.v AS v").with_timestamps(
        "ts", allowed_lag="0 ms", idle_timeout="0 ms"
    )
    rows.group_by("k").window(windows.tumbling(f"{WINDOW_MS} ms")).aggregate(
        n=agg.count(), total=agg.sum("v"), name="counts"
    ).write_to(sinks.files(f"{folder}/out/counts", format="json"), name="counts_out")
    return p


PIPELINES = {
    "totals": totals,
    "changes": changes,
    "entries": entries,
    "windowed_changes": windowed_changes,
}


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, PIPELINES[str(order.pop("pipeline"))])
