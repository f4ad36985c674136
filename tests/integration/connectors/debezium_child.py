"""Debezium's changes in a topic into a mirror and into a compacted topic, where tombstones delete;
and the driver that is killed with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources
from tests.integration import child

JOB, URL = "debezium", "JET_TEST_DEBEZIUM_URL"
SCHEMA = "id bigint, name string, large string, price decimal(10,2), at timestamp"


def debezium_pipeline(folder: Path) -> Pipeline:
    """`debezium.json` in the folder says which topics, which database and which transactions."""
    place = json.loads((folder / "debezium.json").read_text())
    os.environ[URL] = place["url"]
    p = Pipeline(JOB)
    changes = p.read_from(
        sources.kafka(place["servers"], topics=place["topic"], format="debezium", schema=SCHEMA),
        name="changes",
    )
    changes.write_to(sinks.sql(Secret(URL), table="m", mode="mirror", key="id"), name="out")
    newest = sinks.kafka(
        place["servers"],
        topic=place["newest"],
        key="id",
        tombstone="gone",
        transactions=place["transactions"],
    )
    changes.select("id", "name", "op = 'delete' as gone").write_to(newest, name="newest")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, debezium_pipeline)
