"""A queue of SQS into files, and the driver that is killed with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, Secret, sinks, sources
from tests.integration import child
from tests.servers.sqs import REGION

JOB = "sqs"
KEY_ID, KEY = "JET_TEST_SQS_KEY_ID", "JET_TEST_SQS_KEY"


def secrets() -> dict[str, Any]:
    """Credentials as a source's options."""
    return {"access_key_id": Secret(KEY_ID), "secret_access_key": Secret(KEY), "region": REGION}


def sqs_pipeline(folder: Path, prefetch: int = 10_000) -> Pipeline:
    """`queue.json` in the folder names URL and endpoint."""
    p = Pipeline(JOB)
    place = json.loads((folder / "queue.json").read_text())
    source = sources.sqs(
        place["url"],
        schema="v long",
        endpoint_url=place["endpoint_url"],
        prefetch=prefetch,
        **secrets(),
    )
    p.read_from(source, name="queue").write_to(
        sinks.files(f"{folder}/out", format="json"), name="out"
    )
    return p


def main(folder: Path, order: dict[str, Any]) -> int:
    os.environ.update(json.loads((folder / "credentials.json").read_text()))
    return child.main(folder, order, sqs_pipeline)
