"""The crash suite's pipeline from a bucket into a bucket, and the driver that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline
from dagster_jet.core.secret import Secret

from . import child

BUCKET = "bucket"
ENDPOINT = "JET_TEST_S3_ENDPOINT"
KEY_ID, KEY = "JET_TEST_S3_KEY_ID", "JET_TEST_S3_KEY"
"""Variables of the driver and of the tasks with the credentials; the pipeline has neither."""


def place() -> dict[str, Any]:
    """Options of sources and sinks that name the S3 place."""
    options = {
        "endpoint_url": Secret(env=ENDPOINT),
        "access_key_id": Secret(env=KEY_ID),
        "secret_access_key": Secret(env=KEY),
        "region": "us-east-1",
    }
    return {"storage_options": options}


def url(folder: Path) -> str:
    return f"s3://{BUCKET}/{folder.name}"


def s3_pipeline(folder: Path) -> Pipeline:
    return child.crash_pipeline(url(folder), **place())


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, s3_pipeline)
