"""The job of the soak with three sinks: Kafka and files in; Kafka, PostgreSQL and Parquet out.

python -m tests.soak.three_sinks_driver <world folder> '{"members": [...], "until": ...}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources

from ..integration.child import SCHEMA
from .driver import JOB, drive
from .kafka_driver import told_to_sinks

TABLE = TOPIC = "numbered"
COLUMNS = ("k", "ts", "v", "n")
URL = "JET_SOAK_DATABASE"


def number(state: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A row and the how-manieth of its key it is. Which of two rows comes first is not certain:
    computed for each sink anew, the sinks would differ."""
    state.value += 1
    return {"k": row["k"], "ts": row["ts"], "v": row["v"], "n": state.value}


def pipeline(folder: Path, *, held: bool = False) -> Pipeline:
    """`broker.json` in the folder says where the cluster is; the environment has the URL."""
    servers = json.loads((folder / "broker.json").read_text())["servers"]
    p = Pipeline(JOB)
    messages = p.read_from(sources.kafka(servers, topics=["in"], schema=SCHEMA), name="messages")
    lines = p.read_from(
        sources.files(f"{folder}/in/left", format="json", schema=SCHEMA), name="lines"
    )
    numbered = (
        messages.merge(lines)
        .group_by("k")
        .map_stateful(
            number,
            create=int,
            output_schema="k string, ts long, v long, n long",
            name="numbered",
        )
    )
    told = told_to_sinks(held)
    numbered.write_to(sinks.kafka(servers, topic=TOPIC, key="k", **told), name="to_kafka")
    numbered.write_to(sinks.sql(Secret(URL), table=TABLE, **told), name="to_table")
    numbered.write_to(sinks.files(f"{folder}/out/raw", format="parquet"), name="to_parquet")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    os.environ[URL] = (folder / "url").read_text()
    return drive(folder, order, pipeline(folder, held=order["held"]), max_items_per_epoch=24)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
