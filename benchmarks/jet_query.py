"""The windowed count in dagster_jet: the job that races."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from benchmarks.data import SCHEMA
from dagster_jet import Jet, JobConfig, Pipeline, aggregates, sinks, sources, windows

LAG = "2 seconds"
NEVER = timedelta(hours=1)
SPARK = {"spark.master": "local[2]", "spark.driver.memory": "2g"}


def pipeline(source: Path, output: Path, window_ms: int) -> Pipeline:
    job = Pipeline("windowed_count")
    rows = job.read_from(
        sources.files(str(source), format="json", schema=SCHEMA, shared=True), name="rows"
    )
    rows = rows.with_timestamps("ts", allowed_lag=LAG)
    window = windows.tumbling(timedelta(milliseconds=window_ms))
    counts = rows.group_by("k").window(window).aggregate(n=aggregates.count(), name="counts")
    counts.write_to(sinks.files(str(output), format="json", shared=True), name="out")
    return job


def config(rows_per_epoch: int, snapshot_seconds: float = 1.0) -> JobConfig:
    """Exactly once; epochs as large as `rows_per_epoch` however long they take."""
    return JobConfig(
        snapshot_interval=timedelta(seconds=snapshot_seconds),
        max_items_per_epoch=rows_per_epoch,
        target_epoch_duration=NEVER,
    )


def open_jet(
    folder: Path, spark: Mapping[str, str] | None = None, members: Sequence[str] = ()
) -> Jet:
    """Three embedded members, one backup: the default that users get, unless others are given."""
    folder.mkdir(parents=True, exist_ok=True)
    members = members or [f"file://{folder}/member-{letter}" for letter in "abc"]
    return Jet(store=list(members), spark={**SPARK, **(spark or {})}, work_dir=folder / "work")
