"""Which Spark task, where, gets the rows of a shard.

One machine: every task can read every local run, so rows only have to be grouped by shard.

A cluster: a shard's runs are files on the executor that wrote them, so that every epoch's task of
a shard has to go there. Spark has no such wish in its API; it follows from a cached frame of
*anchors*, one row per shard. A stage's rows are joined to it (both sides hash-partitioned by the
shard's slot), so that a task's input is a shuffle, which says nothing about places, and a cached
block, whose executor Spark prefers and, by our `spark.locality.wait.process`, waits for. A shard
that moves all the same does not find its runs, and the job restarts from its last snapshot. So it
does, at once, when an executor is lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.core.ddl import quoted_name
from dagster_jet.operators.operator import PARTITION_COLUMN
from dagster_jet.spark.cluster.executor_watch import ExecutorWatch
from dagster_jet.spark.cluster.session import executors, executors_wanted
from dagster_jet.spark.tasks.barrier import SHARD_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SLOT = "__slot"
_EXECUTORS_WAIT_S = 30.0
"""As Spark's own `spark.scheduler.maxRegisteredResourcesWaitingTime`."""
_KEYS_PER_SHARD = 40
"""So many integers are tried per shard to find one that Spark's hash sends to each partition."""


class OneMachine:
    """Placement in local mode: any task may take any shard."""

    def __init__(self, session: SparkSession, shard_count: int) -> None:
        self._session, self._shards = session, shard_count

    def by_shard(self, source: DataFrame) -> DataFrame:
        """`source` and `SHARD_COLUMN`: one Spark partition per shard, none of them empty.

        A shard without rows gets an anchor row, which has a shard and nothing else: a task
        without data must still know which shard it is.
        """
        shard = _shard(self._shards)
        anchors = self._session.range(0, self._shards, 1, 1).select(
            *[F.lit(None).cast(f.dataType).alias(f.name) for f in source.schema],
            F.col("id").cast("int").alias(SHARD_COLUMN),
        )
        sharded = source.withColumn(SHARD_COLUMN, shard).union(anchors)
        return sharded.repartitionById(self._shards, F.col(SHARD_COLUMN))

    def shards(self) -> DataFrame:
        """One Spark partition per shard, with the shard's number alone."""
        numbers = self._session.range(0, self._shards, 1, self._shards)
        return numbers.select(F.col("id").cast("int").alias(SHARD_COLUMN))

    def fill(self, frame: DataFrame) -> None:
        """Nothing: tasks of one JVM that need the same block wait for each other."""

    def check(self) -> None:
        """Nothing: the JVM itself would be gone."""

    def close(self) -> None:
        """Nothing is held."""


class Anchored:
    """Placement on a cluster: each shard's tasks run on the executor that caches its anchor."""

    def __init__(self, session: SparkSession, shard_count: int) -> None:
        self._session, self._shards = session, shard_count
        self._await_executors()
        slots = self._slots()
        # The optimizer must not know a slot, whatever the key is: a constant key, or none, would
        # make a constant of it, and of the join below a nested loop that goes by no placement.
        self._slot_sql = (
            f"element_at(array({','.join(map(str, slots))}), "
            f"cast(pmod(`{PARTITION_COLUMN}`, {shard_count}) as int) + 1) "
            "+ (spark_partition_id() & 0)"
        )
        shard = F.col("id").cast("int")
        anchors = session.range(0, shard_count, 1, 1).select(
            F.element_at(F.lit(slots), shard + 1).alias(_SLOT), shard.alias(SHARD_COLUMN)
        )
        self._anchors = anchors.repartition(shard_count, F.col(_SLOT)).persist()
        self._anchors.count()
        self._watch = ExecutorWatch(session)

    def by_shard(self, source: DataFrame) -> DataFrame:
        """As `OneMachine.by_shard`; the join with the anchors tells a task its shard."""
        rows = source.withColumn(_SLOT, F.expr(self._slot_sql))
        rows = rows.repartition(self._shards, F.col(_SLOT))
        joined = self._anchors.hint("shuffle_hash").join(rows, _SLOT, "left")
        names = [F.col(quoted_name(name)) for name in source.columns]
        return joined.select(*names, F.col(SHARD_COLUMN))

    def shards(self) -> DataFrame:
        return self._anchors.select(SHARD_COLUMN)

    def fill(self, frame: DataFrame) -> None:
        """Caches all of a frame that several branches read, by an action of its own.

        Two tasks on two executors that both found a block missing would both compute it: rows
        that a user's function makes anew each time would differ between two sinks, and
        observations would count twice.
        """
        frame.count()

    def check(self) -> None:
        """See `ExecutorWatch.check`."""
        self._watch.check()

    def close(self) -> None:
        self._watch.close()
        self._anchors.unpersist()

    def _await_executors(self) -> None:
        """Shards are spread over the executors that are there now, for the whole execution."""
        wanted = 1 + executors_wanted(self._session)  # and the driver
        deadline = time.monotonic() + _EXECUTORS_WAIT_S
        while len(executors(self._session)) < wanted and time.monotonic() < deadline:
            time.sleep(0.05)

    def _slots(self) -> list[int]:
        """Per shard an integer that Spark's hash partitioning sends to partition = shard.

        Shard numbers themselves would share partitions, and leave others without any.
        """
        found: dict[int, int] = {}
        tried, step = 0, _KEYS_PER_SHARD * self._shards
        while len(found) < self._shards:
            keys = self._session.range(tried, tried + step, 1, 1).select(
                F.pmod(F.hash(F.col("id").cast("int")), F.lit(self._shards)), F.col("id")
            )
            for partition, key in keys.collect():
                found.setdefault(partition, key)
            tried += step
        return [found[shard] for shard in range(self._shards)]


Placement = OneMachine | Anchored


def _shard(shard_count: int) -> Column:
    return F.pmod(F.col(PARTITION_COLUMN), F.lit(shard_count)).cast("int")
