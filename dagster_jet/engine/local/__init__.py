"""The same DAG without Spark: tasklets in one process, with real queues, barriers and watermarks.

For development and tests of processors, in milliseconds and without a JVM; and the executable
definition of the barrier rules.
"""

from dagster_jet.engine.local.holdup import Holdup
from dagster_jet.engine.local.job import LocalJob, LocalResult, LocalStatus
from dagster_jet.engine.local.partitioner import partitioning
from dagster_jet.engine.local.snapshots import MemorySnapshots, Snapshot, Snapshots
from dagster_jet.engine.local.stored_snapshots import StoredSnapshots
from dagster_jet.store.partition import partition_of_key

__all__ = [
    "Holdup",
    "LocalJob",
    "LocalResult",
    "LocalStatus",
    "MemorySnapshots",
    "Snapshot",
    "Snapshots",
    "StoredSnapshots",
    "partition_of_key",
    "partitioning",
]
