"""The job, runtime and sources that the drivers of one execution share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dagster_jet.contract import SourceReader
from dagster_jet.execution.early_results import EarlyResults
from dagster_jet.execution.events import JobEvent
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.retrying import Retrying
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.source_polling import SourcePolling
from dagster_jet.execution.undecided_input import UndecidedInput
from dagster_jet.execution.watermarks import WatermarkTracker
from dagster_jet.job_config import JobConfig
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.spark.planning.execution_plan import ExecutionPlan
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store

_CORRECTION_MAX = 0.1
"""Maximum correction as a share of the elapsed time, so that a wall clock that is a year ahead for
a minute has little effect."""


@dataclass
class Clock:
    """Wall-clock time of the start plus monotonic elapsed time; ignores clock jumps.

    After a suspended machine this clock is behind. It then runs a little faster or slower, never
    backwards, until it agrees with the wall clock.
    """

    _now_s: float = field(default_factory=time.time)
    _at: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now_ms(self) -> int:
        with self._lock:
            at = time.monotonic()
            passed, self._at = at - self._at, at
            behind = time.time() - (self._now_s + passed)
            most = _CORRECTION_MAX * passed
            self._now_s += passed + min(max(behind, -most), most)
            return round(self._now_s * 1000)


@dataclass
class ExecutionContext:
    """Shared values of one execution. Only the epochs' thread changes them."""

    job: str
    graph: Graph
    config: JobConfig
    options: StartOptions
    store: Store
    work_dir: Path
    """Scratch folder of this execution."""
    clock: Clock
    snapshots: SnapshotStore
    readers: Mapping[str, SourceReader]
    polling: SourcePolling
    runtime: SparkRuntime
    watermarks: WatermarkTracker
    early: EarlyResults
    undecided: UndecidedInput | None
    """None with the guarantee `none`: there are no snapshots, and every start begins from scratch.
    """
    journals: SourceJournals
    retrying: Retrying
    committer: SinkCommitter
    failures: Failures
    emit: Callable[[JobEvent], None]
    gives_up: Callable[[], bool]
    """Returns whether waiting for a source that does not answer should end."""
    plan: ExecutionPlan = field(init=False)
    """Result of the analysis at the claim; unset before."""

    def poll(self, *, all_of_them: bool) -> None:
        """Accepts the poll results available now, or waits until every source has answered.

        Raises:
            JetError: a source has failed and is not retryable.
        """
        if all_of_them:
            self.polling.poll_all(self.gives_up)
        else:
            self.polling.poll()
        self.expect_partitions()

    def poll_last(self) -> None:
        """Ends the input with what is available now; later calls of `poll` read the rest of it.

        Raises:
            JetError: as `poll`.
        """
        self.polling.poll_last(self.gives_up)
        self.expect_partitions()

    def expect_partitions(self) -> None:
        """Updates the partitions that hold watermarks back. Called after every poll and plan."""
        now_ms = self.clock.now_ms()
        for node, source in self.plan.partitioned.items():
            self.watermarks.expect(node, self.readers[source].partitions(), now_ms)

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
        )
