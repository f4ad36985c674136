"""The job of the soak from Kafka into tables: rows appended, counts of windows under their key.

python -m tests.soak.postgres_driver <world folder> '{"members": [...], "until": ...}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources, windows
from dagster_jet import aggregates as agg

from ..integration.child import SCHEMA, WINDOW_MS
from .driver import JOB, drive
from .kafka_driver import told_to_sinks

URL = "JET_SOAK_DATABASE"


def pipeline(folder: Path, *, held: bool = False) -> Pipeline:
    """`broker.json` in the folder says where the cluster is; the environment has the URL."""
    servers = json.loads((folder / "broker.json").read_text())["servers"]
    p = Pipeline(JOB)
    rows = p.read_from(
        sources.kafka(servers, topics=["in"], schema=SCHEMA), name="messages"
    ).with_timestamps("ts", allowed_lag="500 ms", idle_timeout="10 seconds")
    rows.write_to(sinks.sql(Secret(URL), table="rows", **told_to_sinks(held)), name="rows_out")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{WINDOW_MS} ms"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    counts.write_to(
        sinks.sql(Secret(URL), table="counts", mode="upsert", key=["k", "window_start"]),
        name="counts_out",
    )
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    os.environ[URL] = (folder / "url").read_text()
    return drive(folder, order, pipeline(folder, held=order["held"]), max_items_per_epoch=24)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
