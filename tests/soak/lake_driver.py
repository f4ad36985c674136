"""The job of the soak with lake tables: Kafka in; Delta Lake, Iceberg and Kafka out.

python -m tests.soak.lake_driver <world folder> '{"members": [...], "until": ...}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources

from ..integration.child import SCHEMA
from ..servers.iceberg_catalog import TOKEN
from .driver import JOB, drive
from .kafka_driver import told_to_sinks
from .three_sinks_driver import number

SPACE = "soak"
TABLES: dict[str, Any] = {"plain": {}, "keyed": {"mode": "upsert", "key": "k"}}
"""Options of the tables in either format: all rows, and the newest of each key."""
WAITING = {"min_file_bytes": 120_000, "max_delay": "7 seconds"}
"""Words by which rows of appends wait: for some epochs, or for some seconds."""
TOPIC = "raw"


def pipeline(folder: Path, *, held: bool = False, waits: bool = False) -> Pipeline:
    """`places.json` in the folder says where the servers and the tables are."""
    os.environ["LAKE_TOKEN"] = TOKEN
    places = json.loads((folder / "places.json").read_text())
    catalog = places["catalog"]
    if catalog["type"] == "rest":
        catalog["token"] = Secret(env="LAKE_TOKEN")
    p = Pipeline(JOB)
    numbered = (
        p.read_from(sources.kafka(places["kafka"], topics=["in"], schema=SCHEMA), name="rows")
        .group_by("k")
        .map_stateful(
            number,
            create=int,
            output_schema="k string, ts long, v long, n long",
            name="numbered",
        )
    )
    for name, mode in TABLES.items():
        how = {**mode, **(WAITING if waits and not mode else {})}
        delta = sinks.delta(f"{places['delta']}/{name}", storage_options=places["storage"], **how)
        numbered.write_to(delta, name=f"delta_{name}")
        iceberg = sinks.iceberg(
            "lake",
            f"{SPACE}.{name}",
            catalog_options=catalog,
            storage_options=places["storage"],
            **how,
        )
        numbered.write_to(iceberg, name=f"iceberg_{name}")
    topic = sinks.kafka(places["kafka"], topic=TOPIC, key="k", **told_to_sinks(held))
    numbered.write_to(topic, name="to_kafka")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    p = pipeline(folder, held=order["held"], waits=order["waits"])
    return drive(folder, order, p, max_items_per_epoch=24)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
