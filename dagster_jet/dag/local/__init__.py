"""Runs a DAG without Spark: tasklets in one process, with real queues, barriers and watermarks.

For tests and development of processors, in milliseconds and without a JVM. It also defines the
barrier rules in executable form. In memory: all state ends with the process.
"""

from dagster_jet.core.partition import partition_of_key
from dagster_jet.dag.local.job import LocalJob, LocalResult, LocalStatus
from dagster_jet.dag.local.partitioner import partitioning
from dagster_jet.dag.local.snapshots import MemorySnapshots, Snapshot
from dagster_jet.dag.local.watermark_hold import VertexWatermarkHold

__all__ = [
    "LocalJob",
    "LocalResult",
    "LocalStatus",
    "MemorySnapshots",
    "Snapshot",
    "VertexWatermarkHold",
    "partition_of_key",
    "partitioning",
]
