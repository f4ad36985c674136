"""Kafka, a window, Kafka: the driver that is killed while it runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, aggregates, sinks, sources, windows

from .. import child

JOB = "kafka"


def kafka_pipeline(folder: Path, guarantee: str = "exactly-once") -> Pipeline:
    """`kafka.json` in the folder says which cluster and topics, and what sinks are told besides."""
    place = json.loads((folder / "kafka.json").read_text())
    p = Pipeline(JOB)
    rows = p.read_from(
        sources.kafka(place["servers"], topics=[place["in"]], schema=child.SCHEMA), name="rows"
    ).with_timestamps("ts", allowed_lag="500 ms", idle_timeout="0 ms")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{child.WINDOW_MS} ms"))
        .aggregate(n=aggregates.count(), total=aggregates.sum("v"), name="counts")
    )
    counts_out, big_out = (
        sinks.kafka(place["servers"], topic=place[name], key="k", **place.get("sinks", {}))
        for name in ("counts", "big")
    )
    counts_name, big_name = place.get("names", ("counts_out", "big_out"))
    counts.write_to(counts_out, name=counts_name)
    rows.filter(f"v >= {child.BIG}").write_to(big_out, name=big_name)
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, kafka_pipeline)
