"""Spark resources of one execution besides its plan; they live as long as the execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dagster_jet.contract import SourceReader
from dagster_jet.core.job_context import Parameters
from dagster_jet.errors import ExecutorLostError, JetError
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.cluster.executor_watch import SESSION_GONE
from dagster_jet.spark.cluster.executors import executors_dead, memory_bytes
from dagster_jet.spark.cluster.placement import Anchored, OneMachine, Placement
from dagster_jet.spark.cluster.session import (
    is_local,
    keeps_workers,
    local_folder,
    parallelism,
)
from dagster_jet.spark.cluster.versions import check_versions
from dagster_jet.spark.errors import translate
from dagster_jet.spark.tables import EnrichmentTables
from dagster_jet.spark.tally import Tally
from dagster_jet.spark.tasks import fail_point_orders
from dagster_jet.spark.tasks.barrier import ACK_COLUMN
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ShardTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Receives the numbers of its shards, and returns acks."""

_EPOCH_BYTES_MIN = 64 << 20


@dataclass
class SparkRuntime:
    """Session, sources' readers, enrichment tables, and placement of the shards."""

    session: SparkSession
    job: str
    readers: Mapping[str, SourceReader]
    shard_count: int
    parameters: Parameters = field(default_factory=Parameters)
    """`JobConfig.parameters`."""
    tally: Tally = field(init=False)
    tables: EnrichmentTables = field(init=False)
    keeps_workers: bool = field(init=False)
    """Workers may continue a task's work after its end. Cached, because it asks the JVM."""
    cores: int = field(init=False)
    """Number of tasks that run at once."""
    _placement: Placement | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.keeps_workers = keeps_workers(self.session)
        self.cores = parallelism(self.session)
        self.tally = Tally(self.session)
        self.tables = EnrichmentTables(self.session, self.job, self.failure)

    @property
    def is_local(self) -> bool:
        """True if all tasks run on the driver's host, and can read each other's files."""
        return is_local(self.session)

    @property
    def epoch_bytes_max(self) -> int:
        """Largest input of an epoch in bytes: half of Spark's memory, the rest is for results."""
        return max(_EPOCH_BYTES_MIN, memory_bytes(self.session) // 2)

    @property
    def placement(self) -> Placement:
        """Placement of the shards, fixed from the first use for the whole execution."""
        if self._placement is None:
            kind = OneMachine if self.is_local else Anchored
            self._placement = kind(self.session, self.shard_count)  # it notices losses from here on
            if not self.is_local and not executors_dead(self.session):
                # All executors have joined, and no task of ours has run. Those that replace others
                # are checked by each task.
                check_versions(self.session, self.job, self.failure)
        return self._placement

    @property
    def is_outgrown(self) -> bool:
        """Whether a restart would spread the shards over more executors."""
        return self._placement is not None and self._placement.is_outgrown

    def run_on_shards(self, task: ShardTask, stages: Sequence[str] = ()) -> tuple[Ack, ...]:
        """Runs a task for every shard on the executor with the shard's local state.

        Callable on any thread.

        Args:
            stages: stages whose user code runs in it, for the error's message.

        Raises:
            JetError: translated from Spark's error, with its reaction.
        """
        try:
            shards, named = self.placement.shards(), ", ".join(stages) or None
            with self.placement.covering():
                acks = collect_acks(shards.mapInArrow(OwnTask(task, named), f"{ACK_COLUMN} binary"))
            self.placement.check()
            self.placement.placed()
        except (PySparkException, Py4JError, OSError) as error:
            raise self.failure(error, stages) from error
        return acks

    def failure(self, error: Exception, stages: Sequence[str] = ()) -> JetError:
        """Translates the error of a failed Spark job.

        If an executor is lost, returns that error, because others can be a consequence of it.
        """
        scratch = None
        try:
            if self._placement is not None:
                self._placement.check()
            scratch = local_folder(self.session)
        except ExecutorLostError as lost:
            return lost
        except SESSION_GONE:
            pass  # nothing answers
        return translate(error, self.job, stages, scratch)

    def close(self) -> None:
        self.tables.close()
        with suppress(Py4JError, OSError):
            if self._placement is not None:
                self._placement.close()


def collect_acks(frame: DataFrame) -> tuple[Ack, ...]:
    """Runs the Spark job of a frame of acks."""
    fail_point_orders.hand_on(frame.sparkSession.sparkContext)
    return tuple(Ack.from_bytes(bytes(row[0])) for row in frame.collect())
