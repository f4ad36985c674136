"""What the drivers of one execution work with: the job, where it runs, and what it reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dagster_jet.connectors.contract import Partitioned, SourceReader
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
from dagster_jet.store import Store

_CORRECTION_MAX = 0.1
"""Of the time that has passed: a wall clock that is a year ahead for a minute does no harm."""


@dataclass
class Clock:
    """Wall-clock time as of the start, going on monotonically: clock jumps do not matter.

    A machine that was suspended finds its own clock behind. So it goes a little faster or slower,
    never back, for as long as the wall clock says something else.
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
    """Of one execution. What changes in it belongs to the epochs' thread."""

    job: str
    graph: Graph
    config: JobConfig
    store: Store
    work_dir: Path
    """Scratch of this execution."""
    clock: Clock
    snapshots: SnapshotStore
    readers: Mapping[str, SourceReader]
    polling: SourcePolling
    runtime: SparkRuntime
    watermarks: WatermarkTracker
    early: EarlyResults
    undecided: UndecidedInput | None
    """None: without a guarantee there are no snapshots, and every start is from scratch."""
    journals: SourceJournals
    retrying: Retrying
    committer: SinkCommitter
    failures: Failures
    emit: Callable[[JobEvent], None]
    gives_up: Callable[[], bool]
    """Whether a source that does not answer is not to be waited for any longer."""
    plan: ExecutionPlan = field(init=False)
    """Of the analysis at the claim; nothing before it needs it."""

    def poll(self, *, all_of_them: bool) -> None:
        """Accepts what has been found by now; or waits until every source has answered, whatever
        that takes.

        Raises:
            JetError: a source has failed, and will again.
        """
        if all_of_them:
            self.polling.poll_all(self.gives_up)
        else:
            self.polling.poll()
        self.expect_partitions()

    def poll_last(self) -> None:
        """The input ends with what is there now; from then on `poll` finds what is left of it.

        Raises:
            JetError: as `poll`.
        """
        self.polling.poll_last(self.gives_up)
        self.expect_partitions()

    def expect_partitions(self) -> None:
        """After every poll and plan: who holds the watermark back now."""
        now_ms = self.clock.now_ms()
        for node, source in self.plan.partitioned.items():
            reader = self.readers[source]
            assert isinstance(reader, Partitioned)
            self.watermarks.expect(node, reader.partitions(), now_ms)

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
