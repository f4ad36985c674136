"""A queue into files, and the driver that is killed with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources
from tests.integration import child

JOB, URL = "rabbitmq", "JET_TEST_RABBITMQ_URL"


def rabbit_pipeline(
    folder: Path, prefetch: int = 10_000, job: str = JOB, out: str = "out"
) -> Pipeline:
    """`queue` in the folder names it."""
    p = Pipeline(job)
    queue = (folder / "queue").read_text()
    source = sources.rabbitmq(Secret(URL), queue=queue, schema="v long", prefetch=prefetch)
    p.read_from(source, name="queue").write_to(
        sinks.files(f"{folder}/{out}", format="json"), name="out"
    )
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    os.environ[URL] = (folder / "url").read_text()
    return child.main(folder, order, rabbit_pipeline)
