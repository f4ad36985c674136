"""Files into the topics that their rows name, and the driver that is killed while it runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources

from .. import child

JOB = "topics"
SCHEMA = "k string, v long, kind string"


def pipeline(folder: Path) -> Pipeline:
    """`place.json` says which cluster and topics. `letters`: where unknown topics go to."""
    place = json.loads((folder / "place.json").read_text())
    p = Pipeline(JOB)
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA)
    out = p.read_from(source, name="rows").write_to(
        sinks.kafka(place["servers"], topics=place["topics"], topic_column="kind", key="k"),
        name="out",
    )
    if place["letters"]:
        out.dead_letter_to(sinks.files(f"{folder}/refused", format="json"), name="letters")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, pipeline)
