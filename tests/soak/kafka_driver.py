"""The job of the soak with Kafka: topics in and out, three sinks cut at one point.

python -m tests.soak.kafka_driver <world folder> '{"members": [...], "master": ..., "until": ...}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg

from ..integration.child import SCHEMA, WINDOW_MS
from .driver import JOB, drive, number

TOPICS = ("raw", "counts", "numbered")


def told_to_sinks(held: bool) -> dict[str, Any]:
    """Options of the sinks, with held transactions or without."""
    return {"transactions": "held", "writers": 3} if held else {}


def pipeline(folder: Path, *, held: bool = False) -> Pipeline:
    """`broker.json` in the folder says where the cluster is."""
    servers = json.loads((folder / "broker.json").read_text())["servers"]
    p = Pipeline(JOB)
    rows = p.read_from(
        sources.kafka(servers, topics=["in"], schema=SCHEMA), name="rows"
    ).with_timestamps("ts", allowed_lag="500 ms", idle_timeout="10 seconds")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{WINDOW_MS} ms"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    numbered = rows.group_by("k").map_stateful(
        number, create=int, output_schema="k string, n long", name="numbered"
    )
    for stage, topic in zip((rows, counts, numbered), TOPICS, strict=True):
        sink = sinks.kafka(servers, topic=topic, key="k", **told_to_sinks(held))
        stage.write_to(sink, name=f"{topic}_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return drive(folder, order, pipeline(folder, held=order["held"]), max_items_per_epoch=24)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
