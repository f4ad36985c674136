"""Files, or a topic, into two tables, and the driver that is killed with it."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources, windows
from dagster_jet import aggregates as agg
from tests.integration import child

JOB, URL = "sql", "JET_TEST_SQL_URL"


def sql_pipeline(folder: Path, transactions: str = "roll-forward") -> Pipeline:
    """Every row is appended; counts of windows are put under their key. `kafka.json` in the folder
    names a topic that has the rows."""
    p = Pipeline(JOB)
    source: Any = sources.files(f"{folder}/in/left", format="json", schema=child.SCHEMA)
    if (folder / "kafka.json").exists():
        place = json.loads((folder / "kafka.json").read_text())
        source = sources.kafka(place["servers"], topics=[place["in"]], schema=child.SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps(
        "ts", allowed_lag="500 ms", idle_timeout="0 ms"
    )
    rows.write_to(sinks.sql(Secret(URL), table="rows", transactions=transactions), name="rows_out")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{child.WINDOW_MS} ms"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    counts.write_to(
        sinks.sql(Secret(URL), table="counts", mode="upsert", key=["k", "window_start"]),
        name="counts_out",
    )
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    os.environ[URL] = (folder / "url").read_text()
    made = partial(sql_pipeline, transactions=order.get("transactions", "roll-forward"))
    return child.main(folder, order, made)
