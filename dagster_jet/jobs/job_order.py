"""A job that is to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dagster_jet.core.secret import Secret
from dagster_jet.execution.stopping import Until
from dagster_jet.job_config import JobConfig
from dagster_jet.pipeline.graph import Graph
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store


@dataclass(frozen=True)
class Order:
    """A job that is to run: its pipeline and settings, where, and until when."""

    job: str
    graph: Graph
    config: JobConfig
    options: StartOptions
    until: Until
    store: Store
    work_dir: Path
    """The job's own folder of scratch files."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the session."""
    shards_min: int = 0
    """Number of shards that earlier executions in this process had: the loss of an executor does
    not divide the state anew. `JobConfig.parallelism` goes before it."""
    standby: bool = False
    """Wait, with Spark warm, until no other process has the job."""
    epochs_table: str | None = None
    """URL of the table that names the versions of the job's lake tables."""
    epochs_storage_options: Mapping[str, str | Secret] = field(default_factory=dict, repr=False)
