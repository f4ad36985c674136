"""Where this deployment keeps its state, and how it runs Spark."""

from __future__ import annotations

import os
from pathlib import Path

from dagster_jet import JetResource

DATA = Path(os.environ.get("JET_DATA", "data")).absolute()
"""Input, output and store of the demo; git-ignored."""


def jet_resource() -> JetResource:
    """Three members on one machine: real deployments put them on three."""
    # A member is not made below a folder that is missing: there, a disk may not be mounted.
    (DATA / "store").mkdir(parents=True, exist_ok=True)
    return JetResource(
        store=[f"file://{DATA}/store/{member}" for member in ("a", "b", "c")],
        backup_count=1,
        spark_config={"spark.master": os.environ.get("JET_SPARK_MASTER", "local[2]")},
        min_report_interval_seconds=float(os.environ.get("JET_REPORT_INTERVAL_SECONDS", "30")),
    )
