"""What an epoch tells its tasks, and how they answer: the barrier, shards, acks.

Everything in a task is called from `mapInArrow`: Arrow batches in, Arrow batches out, and one ack
per (vertex, shard). A task may run twice; whatever it writes is named by attempt and inert until
the coordinator has decided that the ack counts. Executors import this module, never Dagster.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dagster_jet.connectors.contract import TransactionId
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
    """What an epoch's tasks need to know about the epoch."""

    job: str
    timeline: int
    execution_id: int
    epoch_id: int
    snapshot_id: int | None
    work_dir: str
    partition_count: int
    store: StoreHandle | None
    """Present when the epoch ends in a snapshot."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    saves_beside: bool = False
    """Workers are on the driver's host and stay: they may save state when its task is over."""

    def transaction(self, sink: str, shard: int, attempt: str) -> TransactionId:
        return TransactionId(
            self.job, sink, self.timeline, self.execution_id, self.epoch_id, shard, attempt
        )

    @property
    def fencing_token(self) -> int:
        """Of the processors in this epoch; see `ProcessorContext.fencing_token`."""
        return (self.execution_id << _EPOCH_BITS) + self.epoch_id

    def chunk_map_name(self) -> str:
        return f"jobs/{self.job}/state"

    def run_folder(self, vertex: str) -> Path:
        """Where this process keeps a vertex's local runs. The executor's name is part of it: who
        looks at the paths in the acks sees which executor has a shard.

        Raises:
            As `private_folder`.
        """
        with private_folder(self.work_dir, vertex) as folder:
            return folder / executor_name() / vertex


@contextmanager
def private_folder(work_dir: str, stage: str | None = None) -> Iterator[Path]:
    """The work folder, made if it is not there; what is done in it fails as its making does.

    Raises:
        ConfigurationError: it is somebody else's (`scratch.py`).
        ExecutorLostError: it cannot be made, or written to.
    """
    folder = Path(work_dir)
    try:
        make_private(folder)
        yield folder
    except OSError as error:
        raise ExecutorLostError(
            f"the work folder {folder} cannot be used: {error}.",
            stage=stage,
            cure="Free some space, or give another work_dir; meanwhile the job restarts from its "
            "last snapshot.",
        ) from error


def saving_folder(work_dir: str | Path) -> Path:
    """Where workers say what became of state that they save beside their tasks."""
    return Path(work_dir) / "saving"


def executor_name() -> str:
    """Of the executor that this worker belongs to: host, and the process that forks its workers."""
    return f"{socket.gethostname()}-{os.getppid()}"


def new_attempt() -> str:
    """Unique among all attempts of all tasks of an execution."""
    from pyspark import TaskContext

    fail_point_orders.obey()
    context = TaskContext.get()
    number = context.taskAttemptId() if context is not None else os.getpid()
    return f"{number}.{uuid.uuid4().hex[:6]}"
