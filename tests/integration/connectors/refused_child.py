"""Files into a topic, and the driver that is killed with it; `place.json` says which topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, sinks, sources
from tests.integration import child

JOB = "refused"
SCHEMA = "id long, text string, part int, at timestamp"


def pipeline(folder: Path) -> Pipeline:
    place = json.loads((folder / "place.json").read_text())
    p = Pipeline(JOB)
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA)
    to = sinks.kafka(partition="part", timestamp="at", **place["sink"])
    out = p.read_from(source, name="rows").write_to(to, name="out")
    if place["letters"]:
        out.dead_letter_to(sinks.files(f"{folder}/refused", format="json"), name="letters")
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, pipeline)
