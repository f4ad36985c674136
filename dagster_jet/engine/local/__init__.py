"""The same DAG without Spark: tasklets in one process, with real queues, barriers and watermarks.

For tests and development of processors, in milliseconds and without a JVM; and the executable
definition of the barrier rules. In memory: nothing outlives the process.
"""

from dagster_jet.engine.local.holdup import Holdup
from dagster_jet.engine.local.job import LocalJob, LocalResult, LocalStatus
from dagster_jet.engine.local.partitioner import partitioning
from dagster_jet.engine.local.snapshots import MemorySnapshots, Snapshot
from dagster_jet.store.partition import partition_of_key

__all__ = [
    "Holdup",
    "LocalJob",
    "LocalResult",
    "LocalStatus",
    "MemorySnapshots",
    "Snapshot",
    "partition_of_key",
    "partitioning",
]
