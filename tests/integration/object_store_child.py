"""The crash suite's pipeline from an object store into itself, and the driver that is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline
from dagster_jet.core.secret import Secret

from . import child

BUCKET = "bucket"
DRIVERS = "JET_TEST_OBJECT_DRIVERS"
"""Folder with gcsfs and adlfs."""
GCS, AZURE = "JET_TEST_GCS", "JET_TEST_AZURE"
"""Where the servers are, for the driver and for the tasks."""
OPTIONS: dict[str, dict[str, Any]] = {
    "gs": {"endpoint_url": Secret(env=GCS), "token": "anon"},
    "abfs": {"connection_string": Secret(env=AZURE)},
}


def place(scheme: str) -> dict[str, Any]:
    return {"storage_options": OPTIONS[scheme]}


def url(folder: Path) -> str:
    """URL of a world's folder, whose name begins with the scheme."""
    return f"{folder.name.partition('-')[0]}://{BUCKET}/{folder.name}"


def pipeline(folder: Path) -> Pipeline:
    return child.crash_pipeline(url(folder), **place(folder.name.partition("-")[0]))


def main(folder: Path, order: dict[str, Any]) -> int:
    sys.path.append(os.environ[DRIVERS])
    return child.main(folder, order, pipeline)
