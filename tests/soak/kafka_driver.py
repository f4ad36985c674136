"""The job of the soak with Kafka: topics in and out, three sinks cut at one point.

python -m tests.soak.kafka_driver <world folder> '{"members": [...], "master": ..., "until": ...}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg

from ..integration.child import SCHEMA, WINDOW_MS
from .driver import number, see

TOPICS = ("raw", "counts", "numbered")


def pipeline(folder: Path) -> Pipeline:
    """`broker.json` in the folder says where the cluster is."""
    servers = json.loads((folder / "broker.json").read_text())["servers"]
    p = Pipeline("soak")
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
        stage.write_to(sinks.kafka(servers, topic=topic, key="k"), name=f"{topic}_out")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    spark = {"spark.master": order["master"], "spark.driver.memory": "768m"}
    config = JobConfig(snapshot_interval="0 ms", max_items_per_epoch=24, lease_ttl="2 seconds")
    with Jet(store=order["members"], spark=spark, work_dir=folder / "work") as jet:
        try:
            result = jet.run(pipeline(folder), config, until=order["until"], on_event=see)
        except Exception as error:
            print(f"ended by {type(error).__name__}: {error}", flush=True)
            return 3
    print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
