"""Messages between an epoch and its tasks: the barrier, shards, acks.

All code in a task is called from `mapInArrow`: Arrow batches in, Arrow batches out, and one ack per
(vertex, shard). A task may run twice; everything it writes is named by attempt and has no effect
until the coordinator has decided that the ack counts. Executors import this module, never Dagster.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from dagster_jet.contract import TransactionId
from dagster_jet.core.job_context import JobContext, Metrics, Parameters
from dagster_jet.dag import Guarantee
from dagster_jet.errors import ExecutorLostError
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.tasks import fail_point_orders
from dagster_jet.store import StoreHandle
from dagster_jet.system.scratch import make_private

ACK_COLUMN = "__ack"
SHARD_COLUMN = "__shard"
_EPOCH_BITS = 40
ACK_SCHEMA = pa.schema([(ACK_COLUMN, pa.binary())])


def ack_batch(ack: Ack) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([ack.to_bytes()], pa.binary())], schema=ACK_SCHEMA)


def owned_partitions(shard: int, shard_count: int, partition_count: int) -> range:
    return range(shard, partition_count, shard_count)


@dataclass(frozen=True)
class Barrier:
    """Parameters of an epoch for its tasks."""

    job: str
    timeline: int
    execution_id: int
    epoch_id: int
    snapshot_id: int | None
    work_dir: str
    partition_count: int
    store: StoreHandle | None
    """Set if the epoch ends in a snapshot."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    saves_beside: bool = False
    """Workers are on the driver's host and stay alive: they may save state after the task's end."""
    parameters: Parameters = field(default_factory=Parameters)
    """`JobConfig.parameters`."""

    def transaction(self, sink: str, shard: int, attempt: str) -> TransactionId:
        return TransactionId(
            self.job, sink, self.timeline, self.execution_id, self.epoch_id, shard, attempt
        )

    @property
    def fencing_token(self) -> int:
        """Token of the processors in this epoch; see `ProcessorContext.fencing_token`."""
        return (self.execution_id << _EPOCH_BITS) + self.epoch_id

    def job_context(self, stage: str) -> JobContext:
        """The context of the stage's functions in one task."""
        return JobContext(self.job, stage, self.parameters, Metrics(self.job, stage))

    def chunk_map_name(self) -> str:
        return f"jobs/{self.job}/state"

    def run_folder(self, vertex: str) -> Path:
        """Folder of this process for a vertex's local runs. It contains the executor's name, so
        that the paths in the acks show which executor has a shard.

        Raises:
            As `private_folder`.
        """
        with private_folder(self.work_dir, vertex) as folder:
            return folder / executor_name() / vertex


@contextmanager
def private_folder(work_dir: str, stage: str | None = None) -> Iterator[Path]:
    """Creates the work folder if needed; an OSError inside the block is treated like one here.

    Raises:
        ConfigurationError: it belongs to another user (`scratch.py`).
        ExecutorLostError: it cannot be created or written to.
    """
    folder = Path(work_dir)
    try:
        make_private(folder)
        yield folder
    except OSError as error:
        raise ExecutorLostError(
            f"the work folder {folder} cannot be used: {error}.",
            stage=stage,
            cure="Free disk space, or give another work_dir. Meanwhile the job restarts from its "
            "last snapshot.",
        ) from error


def saving_folder(work_dir: str | Path) -> Path:
    """Folder in which workers report the end of state uploads beside their tasks."""
    return Path(work_dir) / "saving"


def executor_name() -> str:
    """Name of this worker's executor: host, and id of the process that forks its workers."""
    return f"{socket.gethostname()}-{os.getppid()}"


def new_attempt() -> str:
    """Returns a name that is unique among all attempts of all tasks of an execution."""
    from pyspark import TaskContext

    fail_point_orders.obey()
    context = TaskContext.get()
    number = context.taskAttemptId() if context is not None else os.getpid()
    return f"{number}.{uuid.uuid4().hex[:6]}"
