"""The job and its place, for all drivers of one execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_jet.execution.clock import Clock
from dagster_jet.execution.events import JobEvent
from dagster_jet.job_config import JobConfig
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store

if TYPE_CHECKING:
    from dagster_jet.spark.planning.execution_plan import ExecutionPlan
    from dagster_jet.spark.runtime import SparkRuntime


@dataclass(frozen=True)
class ExecutionContext:
    """One execution's job, store, Spark resources and clock. Nothing in it changes."""

    job: str
    graph: Graph
    config: JobConfig
    options: StartOptions
    store: Store
    work_dir: Path
    """Scratch folder of this execution."""
    clock: Clock
    runtime: SparkRuntime
    emit: Callable[[JobEvent], None]

    @cached_property
    def plan(self) -> ExecutionPlan:
        """The analysed pipeline. The claim uses it first, on the epochs' thread, and so makes it.

        Raises:
            JetError: as `analyse`.
        """
        from dagster_jet.spark.planning.analysis import analyse  # loads Spark

        return analyse(self.runtime, self.graph, self.store.partition_count)

    def barrier(
        self,
        record: ExecutionRecord,
        epoch_id: int,
        *,
        with_store: bool,
        snapshot_id: int | None = None,
    ) -> Barrier:
        return Barrier(
            job=self.job,
            timeline=record.timeline,
            execution_id=record.execution_id,
            epoch_id=epoch_id,
            snapshot_id=snapshot_id,
            work_dir=str(self.work_dir),
            partition_count=self.store.partition_count,
            store=self.store.handle() if with_store else None,
            guarantee=self.config.guarantee,
            saves_beside=self.runtime.keeps_workers,
            parameters=self.runtime.parameters,
        )
